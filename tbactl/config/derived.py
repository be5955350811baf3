"""Numbers that follow from a configuration: never settings of their own. Each docstring is the formula."""

from __future__ import annotations

from tbactl.config.sections import RunConfig

# msgpack: up to 5 bytes for a token's id and 9 for its log-prob. Its text comes on top, hence the factor by which a
# ring must exceed the largest group.
BYTES_PER_TOKEN = 14
BYTES_PER_TRAJECTORY = 256
RING_SAFETY_FACTOR = 2
# The version that searchers read, an older one that a slow searcher still maps, and the one being written.
WEIGHT_VERSIONS_HELD = 3
# Open groups of a searcher in mode async, over searchers.max_concurrent_groups.
OPEN_GROUPS_FACTOR = 2
# Places in vLLM for the sequences of a probe beside a full load: a check must not wait for a completion to end.
PROBE_SEQUENCES = 8
MIN_KV_CACHE_BYTES, MAX_KV_CACHE_BYTES = 64 * 2**20, 8 * 2**30


def batch_trajectories(config: RunConfig) -> int:
    """Trajectories in one optimizer step: B * K."""
    return config.trainer.prompts_per_step * config.trainer.completions_per_prompt


def group_tokens(config: RunConfig) -> int:
    """Padded tokens of the largest group in a forward pass: K * (max_prompt_tokens + max_new_tokens).

    That is where prompts are not shared; see `shared_group_tokens`.
    """
    return config.trainer.completions_per_prompt * sequence_tokens(config)


def shared_group_tokens(config: RunConfig) -> int:
    """The same where a prompt is read once, as most models can: max_prompt_tokens + K * max_new_tokens."""
    searchers = config.searchers
    return searchers.max_prompt_tokens + config.trainer.completions_per_prompt * searchers.max_new_tokens


def sequence_tokens(config: RunConfig) -> int:
    """The longest sequence: max_prompt_tokens + max_new_tokens."""
    return config.searchers.max_prompt_tokens + config.searchers.max_new_tokens


def largest_group_bytes(config: RunConfig) -> int:
    """A group of S full completions in a ring: 14 * (max_prompt_tokens + S * max_new_tokens) + 256 * (S + 1)."""
    searchers = config.searchers
    tokens = searchers.max_prompt_tokens + searchers.num_completions * searchers.max_new_tokens
    return BYTES_PER_TOKEN * tokens + BYTES_PER_TRAJECTORY * (searchers.num_completions + 1)


def most_open_groups(config: RunConfig) -> int:
    """Prompts of a searcher with a completion in flight: 2 * max_concurrent_groups; sync mode: max_concurrent_groups.

    Mode async begins one when S places of max_concurrent_groups * S are free, whichever groups left them.
    """
    most = config.searchers.max_concurrent_groups
    return most if config.mode == "sync" else OPEN_GROUPS_FACTOR * most


def smallest_ring_bytes(config: RunConfig) -> int:
    """The least `searchers.ring_capacity_bytes` that takes any group: 2 * largest_group_bytes."""
    return RING_SAFETY_FACTOR * largest_group_bytes(config)


def weight_copies(config: RunConfig) -> int:
    """Whole weights that lie in /dev/shm at a time: 3 versions; where adapters are published, 1 in each searcher."""
    publishes_adapters = config.policy.lora_rank > 0 and config.sync.weights == "adapter"
    return config.searchers.num_searchers if publishes_adapters else WEIGHT_VERSIONS_HELD


def shared_memory_bytes(config: RunConfig, *, policy_bytes: int) -> int:
    """What the run needs in /dev/shm: N * ring_capacity_bytes + weight_copies * policy_bytes."""
    rings = config.searchers.num_searchers * config.searchers.ring_capacity_bytes
    return rings + weight_copies(config) * policy_bytes


def searchers_here(config: RunConfig) -> int:
    """Searchers that share this machine with the trainer: all, or none where Ray places them."""
    return 0 if config.searchers.launcher == "ray" else config.searchers.num_searchers


def kv_token_bytes(*, num_layers: int, num_key_value_heads: int, head_size: int, dtype: str) -> int:
    """Keys and values of one token in all layers: 2 * layers * heads * head size * bytes of the type."""
    return 2 * num_layers * num_key_value_heads * head_size * (4 if dtype == "float32" else 2)


def cpu_kv_cache_bytes(*, token_bytes: int, max_concurrent_sequences: int, max_model_tokens: int) -> int:
    """What vLLM is given on a CPU: all sequences and 8 of a probe at full length, from 64 MiB to 8 GiB.

    That is token_bytes * (max_concurrent_sequences + 8) * (max_model_tokens + 1) within these bounds.
    """
    needed = token_bytes * (max_concurrent_sequences + PROBE_SEQUENCES) * (max_model_tokens + 1)
    return min(max(needed, MIN_KV_CACHE_BYTES), MAX_KV_CACHE_BYTES)


def freshest_staleness(config: RunConfig) -> int:
    """Optimizer steps the newest obtainable trajectory can lag before a sync, at best; sync mode: 0.

    At best: completions that take no time. What is generated, scored or waiting while steps are made is older. It is
    min(k, max_steps) - 1 with `replay.intake` = continuous. At-sync takes in what was made since the sync before:
    min(2k, max_steps) - 1.
    """
    if config.mode == "sync":
        return 0
    num_periods = 2 if config.replay.intake == "at-sync" else 1
    return min(num_periods * config.sync.period, config.trainer.max_steps) - 1


def worst_case_staleness(config: RunConfig) -> int:
    """The oldest trajectory a batch can hold, in optimizer steps.

    min(max_steps - 1, max_staleness), for the buffer keeps data of step 0 until it is evicted; with
    `replay.on_policy_fraction` = 1 in sync mode it is 0.
    """
    if config.mode == "sync" and config.replay.on_policy_fraction == 1.0:
        return 0
    age_of_run = config.trainer.max_steps - 1
    limit = config.replay.max_staleness
    return age_of_run if limit is None else min(limit, age_of_run)
