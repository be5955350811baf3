"""Before a run: does `scoring.py` compute what this model computes, and can prompts be shared?

A small random batch is scored in all ways and the results are compared, gradients included: an architecture whose cache
cuts them off would learn from completions alone, without a sign.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from tbactl.errors import ConfigError
from tbactl.trainer.collate import MicroBatch, PaddedRows, collate
from tbactl.trainer.scoring import ScoringModel, score_only_group
from tbactl.types import TrajectoryGroup

# Mean difference over tokens, in nats, between two ways to compute the same log-probs.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE_TOLERANCE = 0.1
# Of gradients: norm of the difference, as a share of the norm.
GRADIENT_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE_GRADIENT_TOLERANCE = 0.3
# What configurations call a window, besides `sliding_window`.
OTHER_WINDOWS = ("window_size", "attention_window", "attention_window_size", "attention_chunk_size")


def check_scoring(model: ScoringModel) -> str | None:
    """Compare our log-probs with those of the model's own logits.

    Args:
        model: as it is going to be trained, layers that are recomputed included; not yet wrapped or sharded.

    Returns:
        Why prompts cannot be shared; None when they can.

    Raises:
        ConfigError: the model does something to its logits that is not done here (a soft cap, a scale).
    """
    groups = _random_groups(vocabulary=int(model.policy.config.vocab_size))
    expected, gradient = _scored(model, groups, shares_prompt=False)
    tolerance = TOLERANCE.get(model.policy.dtype, COARSE_TOLERANCE)
    difference = float((expected - _own_logprobs(model, groups)).abs().mean())
    if not difference <= tolerance:
        raise ConfigError(
            f"policy {type(model.policy).__name__}: its own log-probs differ from hidden states times head by "
            f"{difference:.2g} nats a token (allowed: {tolerance:g}); it transforms its logits (a soft cap or a "
            f"scale), which tbactl does not support yet; choose another model."
        )
    if _has_special_attention(model.policy):
        return "the model has layers with a sliding window (or attention in chunks), or without attention"
    if model.policy.is_gradient_checkpointing:  # by transformers' switch; see recompute.py
        return "gradient checkpointing takes keys and values away from the layers of this architecture"
    try:
        shared, shared_gradient = _scored(model, groups, shares_prompt=True)
    except Exception as error:  # whatever an architecture without such a cache does with it
        return f"the model does not take a prompt's keys and values: {type(error).__name__}: {error}"
    return _first_difference(
        logprobs=float((shared - expected).abs().mean()),
        gradients=float((shared_gradient - gradient).norm() / gradient.norm()),
        dtype=model.policy.dtype,
    )


def _first_difference(*, logprobs: float, gradients: float, dtype: torch.dtype) -> str | None:
    if not logprobs <= TOLERANCE.get(dtype, COARSE_TOLERANCE):
        return f"log-probs would differ by {logprobs:.2g} nats a token"
    if not gradients <= GRADIENT_TOLERANCE.get(dtype, COARSE_GRADIENT_TOLERANCE):
        return f"gradients would differ by {gradients:.2g} of their norm"
    return None


def _scored(
    model: ScoringModel, groups: list[TrajectoryGroup], *, shares_prompt: bool
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " numbers"]]:
    """Log-probs of all completion tokens, and the gradient of their sum with respect to the prompts' embeddings."""
    batch = _collated(model, groups, shares_prompt=shares_prompt)
    with torch.enable_grad(), _embeddings_as_leaves(model.policy) as leaves:
        # The plain distribution: random completions may hold EOS anywhere.
        logprobs = model(batch, temperature=model.temperature)
        (gradient,) = torch.autograd.grad(logprobs.sum(), leaves[:1])
    if not shares_prompt:
        shape = (batch.num_groups, *gradient.shape[1:])
        gradient = gradient.new_zeros(shape).index_add(0, batch.group_index, gradient)
    of_prompts = [row[: len(group.prompt_token_ids)].flatten() for row, group in zip(gradient, groups, strict=True)]
    return logprobs.detach()[batch.completion_mask], torch.cat(of_prompts).double()


@contextmanager
def _embeddings_as_leaves(policy: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Inside, what the embedding layer gives is collected, and takes gradients even where all weights are frozen."""
    leaves: list[Tensor] = []

    def replace(module: torch.nn.Module, inputs: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    handle = policy.get_input_embeddings().register_forward_hook(replace)
    try:
        yield leaves
    finally:
        handle.remove()


def _own_logprobs(model: ScoringModel, groups: list[TrajectoryGroup]) -> Float[Tensor, " tokens"]:
    batch = _collated(model, groups, shares_prompt=False)
    assert isinstance(batch.rows, PaddedRows)
    with torch.no_grad():
        logits = model.policy(input_ids=batch.rows.input_ids, use_cache=False).logits
    softmax_dtype = torch.promote_types(logits.dtype, torch.float32)
    logprobs = (logits.to(softmax_dtype) / model.temperature).flatten(0, 1).log_softmax(dim=-1)
    picked = logprobs[batch.source].gather(-1, batch.target_ids[..., None]).squeeze(-1)
    return picked[batch.completion_mask]


def _collated(model: ScoringModel, groups: list[TrajectoryGroup], *, shares_prompt: bool) -> MicroBatch:
    return collate(groups, shares_prompt=shares_prompt).to(next(model.policy.parameters()).device)


def _has_special_attention(policy: PreTrainedModel) -> bool:
    """Windows and recurrent layers, which a small batch does not show."""
    config = policy.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    has_sliding_window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return kinds != {"full_attention"} or bool(has_sliding_window) or _has_window_by_another_name(policy)


def _has_window_by_another_name(policy: PreTrainedModel) -> bool:
    """Where a model cuts its window out by place in the row, filler behind a short prompt takes part of it."""
    layers = getattr(policy.config, "attention_layers", None)
    if isinstance(layers, list | tuple):  # GPT-Neo, which has a window size even where no layer uses it
        return "local" in layers
    return any(getattr(policy.config, name, None) for name in OTHER_WINDOWS)


def _random_groups(*, vocabulary: int) -> list[TrajectoryGroup]:
    rng = random.Random(0)
    return [
        score_only_group(
            [rng.randrange(vocabulary) for _ in range(prompt)],
            [[rng.randrange(vocabulary) for _ in range(length)] for length in lengths],
        )
        for prompt, lengths in ((3, (1, 5, 2)), (6, (4, 2, 3)))
    ]
