"""The settings of a run, one frozen model per section; `RunConfig` is the whole.

Every field says unit and range. Unknown keys are refused by `loading.py`, rules between sections stand in `rules.py`.
A section that picks an implementation has a `kind` and `options`; the class found by that name validates its options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
OUTPUT_NAME_PATTERN = r"^[^/.\x00-\x1f][^/\x00-\x1f]{0,99}$"

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
StopString = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """Base of all sections: immutable, no unknown key, field docstrings are the documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TaskSection(Section):
    """Which problems, and which reward."""

    kind: str
    """Name of an installed task (`tbactl tasks list`)."""
    options: dict[str, Any] = {}
    """The task's own settings; `tbactl tasks list --json` shows them."""


class PolicySection(Section):
    """The language model that is trained; its initial weights are the reference policy."""

    path: Annotated[str, Field(min_length=1)]
    """Hugging Face hub name, local directory, `task:NAME` for a policy that the task's package ships, or `package:NAME`
    for one that another Python package holds (`package:smollm2-135m-instruct`)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the trainer's weights and of the searchers' computation."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you trust its author."""
    lora_rank: Annotated[int, Field(ge=0)] = 0
    """Train low-rank adapters of this rank alone; the reference is the policy without them. 0: train all weights."""
    lora_alpha: PositiveFloat = 16.0
    """Adapters are scaled by `lora_alpha` / `lora_rank`."""
    lora_target_modules: tuple[str, ...] = ("all-linear",)
    """Names of the layers that get adapters; `all-linear`: all but the head."""


class SearchersSection(Section):
    """The processes that explore."""

    num_searchers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes; each owns one engine and one ring."""
    engine: str = "vllm"
    """Name of an engine: `vllm`, `transformers`, or `fake` (no model, for tests)."""
    engine_options: dict[str, Any] = {}
    """The engine's own settings."""
    num_completions: PositiveInt = 8
    """S: completions generated for each prompt."""
    max_prompt_tokens: PositiveInt = 512
    """Prompts longer than this are skipped and counted."""
    max_new_tokens: PositiveInt = 512
    """Completions are cut here (`finish_reason` = length; no EOS is added)."""
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    """No completion ends before it has this many tokens: until then EOS has probability 0, for the policy that samples,
    the one that is trained and the reference alike."""
    stop_strings: tuple[StopString, ...] = ()
    """A completion ends with the token, after the first `min_new_tokens`, that completes one of these in its text
    (`finish_reason` = stop). That token is part of it, its log-prob counts; no EOS is added. In evaluations as well."""
    temperature: PositiveFloat = 0.7
    """Sampling temperature; policy and reference log-probs refer to it as well, or to its final value."""
    temperature_final: PositiveFloat | None = None
    """Sampling temperature from `temperature_steps` on. Policy and reference log-probs refer to it from the start."""
    temperature_steps: Annotated[int, Field(ge=0)] = 0
    """Length, in optimizer steps, of the linear change from `temperature` to `temperature_final`."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling. Below 1 behaviour log-probs are renormalised over the nucleus, which biases ratios to them."""
    max_concurrent_groups: PositiveInt = 16
    """Prompts in flight in one searcher, S completions each. Mode async begins one as soon as S places are free, of
    whichever prompts: while completions of many are finished up to twice as many prompts are open, with no more
    completions in flight."""
    ring_capacity_bytes: Annotated[int, Field(ge=4096)] = 64 * 2**20
    """Size of each searcher's ring in /dev/shm."""
    launcher: Literal["processes", "ray"] = "processes"
    """`processes`: on this machine. `ray`: on any node of a Ray cluster that this machine belongs to."""
    ray_address: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:\[\]-]+$")] = "auto"
    """`HOST:PORT` of the cluster; `auto`: the one that this machine has joined (`ray start`)."""
    ray_resources: dict[str, PositiveFloat] = {"CPU": 1.0}
    """What each searcher takes of its node: `CPU`, `GPU`, or a name of your own that some nodes were started with."""


class ObjectiveSection(Section):
    """What the trainer minimises."""

    kind: str = "trajectory-balance"
    """Name of an objective."""
    options: dict[str, Any] = {}
    """The objective's own settings."""
    beta: PositiveFloat = 0.01
    """KL coefficient at step 0: the target is pi_ref * exp(reward / beta)."""
    beta_final: PositiveFloat | None = None
    """KL coefficient from `beta_steps` on; None keeps it constant."""
    beta_steps: Annotated[int, Field(ge=0)] = 0
    """Length, in optimizer steps, of the linear change from `beta` to `beta_final`."""
    beta_stop_step: Annotated[int, Field(ge=0)] | None = None
    """Jump to `beta_final` at this optimizer step, before the line gets there. None: no jump."""
    reference_temperature: PositiveFloat = 1.0
    """gamma at step 0. Of `trajectory-balance`, whose target is [pi_ref^(1 / gamma) * exp(reward / beta)]^(1 / T)."""
    reference_temperature_final: PositiveFloat | None = None
    """gamma from `reference_temperature_steps` on; None keeps it constant. Above 1 it counts for less."""
    reference_temperature_steps: Annotated[int, Field(ge=0)] = 0
    """Length, in optimizer steps, of the linear change of gamma."""
    target_temperature: PositiveFloat = 1.0
    """T at step 0, of the same target. Above 1 it is flatter: beginning there keeps a policy from settling early."""
    target_temperature_final: PositiveFloat | None = None
    """T from `target_temperature_steps` on; None keeps it constant."""
    target_temperature_steps: Annotated[int, Field(ge=0)] = 0
    """Length, in optimizer steps, of the linear change of T."""


class ReferenceSection(Section):
    """What the policy is kept close to."""

    kind: Literal["initial", "reset", "ema"] = "initial"
    """`initial`: the first policy. `reset`: replaced by the policy every `period` steps. `ema`: moved towards it."""
    period: PositiveInt = 50
    """Optimizer steps between two resets, or two moves of the average."""
    ema_decay: Fraction = 0.99
    """Share of the old reference that a move of the average keeps."""
    resets_optimizer: bool = False
    """Forget the optimizer's averages at each reset."""


class ReplaySection(Section):
    """The central store of trajectories."""

    capacity: PositiveInt = 100_000
    """Trajectories kept in all."""
    capacity_per_prompt: PositiveInt = 100
    """Trajectories kept for each prompt."""
    eviction: Literal["oldest", "lowest-reward"] = "oldest"
    """Which trajectories leave first when a prompt, or the buffer, is full."""
    initial_trajectories: PositiveInt = 128
    """Training starts when this many trajectories have arrived, repeated ones included."""
    intake: Literal["continuous", "at-sync"] = "continuous"
    """When what has arrived enters the buffer: before every optimizer step, or only at those that sync."""
    sampler: str = "mixture"
    """How batches are drawn: `mixture` (of recency and the whole buffer), or one kind alone: `recency`, `uniform`,
    `reward-softmax`, `residual`."""
    on_policy_fraction: Fraction = 0.95
    """m: probability, drawn for each prompt of a batch, of taking the most recent data; otherwise the whole buffer."""
    mixing: Literal["by-prompt", "by-trajectory"] = "by-prompt"
    """What m is the probability for: that all K trajectories of a prompt are recent ones, or that each of them is. By
    prompt is the paper's; a task of one prompt needs the other, so that a batch holds both."""
    on_policy_fraction_final: Fraction | None = None
    """m from `on_policy_fraction_steps` on; None keeps it constant."""
    on_policy_fraction_steps: Annotated[int, Field(ge=0)] = 0
    """Length, in optimizer steps, of the linear change of m."""
    prioritization: Literal["uniform", "reward-softmax", "residual"] = "uniform"
    """How the mixture draws trajectories of a prompt when it uses the whole buffer."""
    equal_rewards: Literal["as-others", "last"] = "as-others"
    """Of the most recent data, prompts whose trajectories all have one reward: drawn like the others, or only where no
    others are left. They do not say what is better, and only hold the policy near the reference."""
    inverse_temperature: NonNegativeFloat = 1.0
    """Of the reward softmax; 0 is uniform."""
    inverse_temperature_final: NonNegativeFloat | None = None
    """Of the reward softmax from `inverse_temperature_steps` on; None keeps it constant."""
    inverse_temperature_steps: Annotated[int, Field(ge=0)] = 0
    """Length, in optimizer steps, of the linear change of the inverse temperature."""
    residual_exponent: NonNegativeFloat = 1.0
    """Probability of a draw by residual is proportional to |residual| to this power; 0 is uniform."""
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    """Trajectories older than this many optimizer steps are not drawn. None: no limit (any age is valid)."""
    max_samples_per_insert: PositiveFloat | None = None
    """The trainer waits for new data when each trajectory received was trained on this often, on average."""
    min_samples_per_insert: NonNegativeFloat = 0.0
    """New data waits in the rings, and so holds the searchers, while each trajectory was trained on less than this."""
    near_duplicates: Literal["keep", "edit-distance", "embedding"] = "keep"
    """Of two completions of a prompt that are almost the same, keep both, or the one with the higher reward only."""
    near_duplicate_tolerance: NonNegativeFloat = 0.25
    """edit-distance: almost the same below this share of both lengths together. embedding: above this cosine."""
    embedder: str | None = None
    """For `near_duplicates = "embedding"`: hub name or local directory of a sentence encoder, or `package:NAME`."""


class TrainerSection(Section):
    """The processes that learn."""

    kind: str = "deepspeed"
    """Name of a learner: `deepspeed`, or `fake` (no model, for tests)."""
    options: dict[str, Any] = {}
    """The learner's own settings."""
    num_ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Data-parallel processes."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    """DeepSpeed ZeRO stage."""
    max_steps: Annotated[int, Field(ge=1, le=10**9)] = 100
    """Optimizer steps of the run."""
    prompts_per_step: PositiveInt = 16
    """B: prompts in a batch, over all ranks."""
    completions_per_prompt: Annotated[int, Field(ge=2)] = 8
    """K: trajectories of each prompt in a batch."""
    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of AdamW."""
    lr_schedule: str = "constant"
    """Any schedule of transformers: constant, linear, cosine, constant_with_warmup, warmup_stable_decay, ..."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps of linear warm-up."""
    lr_schedule_options: dict[str, Any] = {}
    """Further arguments of the schedule (`num_decay_steps`, ...)."""
    adam_betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """AdamW's averaging coefficients."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradient norm is clipped here; 0 never clips. In reward units, so it does not depend on beta."""
    micro_batch_tokens: PositiveInt = 16_384
    """Padded tokens in one forward pass. A group is never split: a pass holds at least one."""
    logprob_chunk_tokens: PositiveInt = 512
    """Positions whose logits exist at the same time (forward and backward)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass."""


class SyncSection(Section):
    """How weights go back to the searchers."""

    period: PositiveInt = 2
    """k: optimizer steps between two syncs."""
    probe_sequences: Annotated[int, Field(ge=0)] = 4
    """Sequences whose log-probs are compared between trainer and searcher after each sync; 0: no comparison."""
    max_logprob_difference: PositiveFloat = 1e-3
    """Alarm level for that comparison, in nats (raise it for bfloat16)."""
    stop_logprob_difference: NonNegativeFloat = 5.0
    """The run ends when a searcher differs by more than this, in nats, `stop_patience` times in a row; 0: never."""
    stop_patience: PositiveInt = 10
    """For `stop_logprob_difference`: so many versions loaded one after the other."""
    weights: Literal["merged", "adapter"] = "merged"
    """Published when adapters are trained (`policy.lora_rank`): whole weights, or adapters, which searchers merge."""


class EvaluationSection(Section):
    """Evaluation during the run, by searcher 0 between its other work."""

    num_prompts: Annotated[int, Field(ge=0)] = 0
    """Held-out prompts; 0: no evaluation."""
    period: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps between evaluations (a multiple of `sync.period`); 0: only before and after."""
    target: float | None = None
    """Report steps, completions and seconds until the task's first metric reaches this."""


class CheckpointSection(Section):
    """What survives."""

    period: Annotated[int, Field(ge=0)] = 10
    """Optimizer steps between checkpoints; 0: only at the end."""
    keep_last: PositiveInt = 2
    """So many of the newest are kept; older ones are removed."""
    keep_every: Annotated[int, Field(ge=0)] = 0
    """Those of every so many optimizer steps (a multiple of `period`) are kept for good; 0: none."""
    asynchronous: bool = True
    """Train on while a checkpoint that was just written is flushed to the disk and its checksums are computed."""


class SupervisionSection(Section):
    """Bounds of every wait. All in seconds."""

    start_timeout_s: PositiveFloat = 300.0
    """A child must be READY after this long."""
    heartbeat_timeout_s: PositiveFloat = 20.0
    """A child whose heartbeat is older is taken for dead (stopped, swapped out)."""
    progress_timeout_s: PositiveFloat = 300.0
    """A child whose main loop has not moved for this long is ended."""
    acknowledge_timeout_s: PositiveFloat = 120.0
    """A searcher that has not loaded published weights after this long is restarted."""
    evaluation_timeout_s: PositiveFloat = 600.0
    """Limit for one evaluation during the run."""
    stop_grace_s: PositiveFloat = 12.0
    """Time from the request to stop until children are killed."""
    max_restarts: Annotated[int, Field(ge=0, le=30)] = 5
    """Restarts of one searcher before the run fails."""
    restart_backoff_s: NonNegativeFloat = 1.0
    """Wait before the first restart; doubles with each."""


class LoggingSection(Section):
    """Where metrics and samples go besides `metrics.jsonl`."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    wandb_project: str | None = None
    """Also log to this Weights & Biases project (needs the package `wandb`)."""
    trajectories_per_step: Annotated[int, Field(ge=0)] = 4
    """Completions written to trajectories.jsonl at each optimizer step."""
    profile_trace: bool = False
    """Write trace.json, what each process did when, for ui.perfetto.dev; as `--profile-trace` does."""


class RunConfig(Section):
    """All settings of `tbactl run`."""

    name: str = Field(pattern=NAME_PATTERN)
    """Names the run directory."""
    mode: Literal["async", "sync"] = "async"
    """`sync`: searchers and trainer take turns, on-policy, bit-identical for a seed."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Every random stream of the run derives from it."""
    runs_dir: Path = Path("runs")
    """Where run directories are made."""
    task: TaskSection
    policy: PolicySection
    searchers: SearchersSection = SearchersSection()
    objective: ObjectiveSection = ObjectiveSection()
    reference: ReferenceSection = ReferenceSection()
    replay: ReplaySection = ReplaySection()
    trainer: TrainerSection = TrainerSection()
    sync: SyncSection = SyncSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    supervision: SupervisionSection = SupervisionSection()
    logging: LoggingSection = LoggingSection()


class SftConfig(Section):
    """All settings of `tbactl sft`: supervised training of a policy, new or existing, on a task's own solutions."""

    name: str = Field(pattern=OUTPUT_NAME_PATTERN)
    """Names the output directory, `runs_dir`/`name`: checkpoints while it trains, and the finished `policy`."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of data order and initial weights."""
    runs_dir: Path = Path("runs")
    """Where output directories are made."""
    task: TaskSection
    """The task must offer `sft_examples`."""
    policy: PolicySection | None = None
    """Start from this policy; None: from scratch, shaped by `architecture`."""
    architecture: dict[str, Any] = {}
    """Fields of transformers' LlamaConfig, for training from scratch."""
    vocabulary_size: PositiveInt = 1536
    """Of the byte-level BPE tokenizer that is made when training from scratch (digits stay single)."""
    stages: Annotated[tuple[SftStage, ...], Field(min_length=1)]
    """One after the other, each with its own data mixture and learning rate."""
    max_tokens: PositiveInt = 512
    """Longer examples are left out and counted."""
    batch_tokens: PositiveInt = 8192
    """Tokens in an optimizer step, padding not counted."""
    micro_batch_tokens: PositiveInt = 2048
    """Padded tokens in one forward pass; examples of similar length share one. Changes speed, not the result."""
    computation_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products; weights stay float32. bfloat16 is twice as fast on processors with bf16 instructions."""
    export_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the weights in the finished policy."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradient norm is clipped here; 0 never clips."""
    checkpoint_period_s: PositiveFloat = 300.0
    """Seconds between checkpoints; the end of a stage always writes one, and that one is kept."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0: all cores."""


class SftStage(Section):
    """A part of supervised training."""

    name: str = Field(pattern=NAME_PATTERN)
    """For logs and checkpoints."""
    mixture: dict[str, Fraction]
    """Share of each kind of example the task offers, e.g. {worked = 0.4, bare = 0.6}."""
    num_tokens: PositiveInt
    """Completion and prompt tokens seen in this stage."""
    learning_rate: PositiveFloat
    """Peak learning rate of AdamW."""
    lr_schedule: str = "cosine"
    """Any schedule of transformers."""
    lr_schedule_options: dict[str, Any] = {}
    """Further arguments of the schedule (`num_decay_steps`, ...)."""
    warmup_fraction: Fraction = 0.02
    """Share of the steps used for linear warm-up."""
    adam_betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's averaging coefficients."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay."""


SftConfig.model_rebuild()
