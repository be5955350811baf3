"""Per-token log-probs without the [tokens, vocabulary] tensor, which for long completions outweighs the model.

Logits of `chunk_tokens` positions exist at a time: computed, reduced to one number each, freed; the backward pass
computes them again. Before it: the policy's transformer, without its head. After it: `batch.py`.

Letters in the shapes: `tokens` T, `positions` P (those that are scored), `hidden` H, `vocabulary` V.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def token_logprobs(
    hidden: Float[Tensor, "*batch tokens hidden"],
    *,
    lm_head_weight: Float[Tensor, "vocabulary hidden"],
    target_ids: Int[Tensor, "*batch tokens"],
    mask: Bool[Tensor, "*batch tokens"],
    temperature: float,
    chunk_tokens: int,
    lm_head_bias: Float[Tensor, " vocabulary"] | None = None,
    barred_ids: Int[Tensor, " barred"] | None = None,
    is_barred: Bool[Tensor, "*batch tokens"] | None = None,
) -> Float[Tensor, "*batch tokens"]:
    """Log of softmax((hidden W^T + b) / temperature) at the target ids; memory O(chunk_tokens x V) both ways.

    The product is taken in the inputs' dtype, as the model's own head would; softmax and sums in float32 (float64 for
    float64 inputs). Gradients flow to `hidden`, `lm_head_weight` and `lm_head_bias`. Under DeepSpeed ZeRO-3 the caller
    gathers the head's parameters and keeps them gathered until the backward pass has run.

    Args:
        hidden: last hidden states; position t predicts `target_ids[t]` (the caller shifts).
        lm_head_weight: of the language-model head, or the tied embedding.
        target_ids: token ids in [0, V); anything where `mask` is False.
        mask: only positions where it is True are computed.
        temperature: > 0; the one that sampling used.
        chunk_tokens: >= 1; positions whose logits exist at the same time.
        lm_head_bias: of the head, if it has one.
        barred_ids: tokens that sampling left out at some positions: their logits are -infinity there.
        is_barred: those positions; given with `barred_ids`.

    Returns:
        Log-probs in nats, 0 where `mask` is False; float32 or float64.
    """
    assert temperature > 0.0, f"temperature must be > 0, got {temperature}"
    assert chunk_tokens >= 1, f"chunk_tokens must be >= 1, got {chunk_tokens}"
    assert hidden.shape[:-1] == target_ids.shape == mask.shape, (
        f"target_ids {list(target_ids.shape)} and mask {list(mask.shape)} must have the shape of hidden without its "
        f"last dimension, {list(hidden.shape[:-1])}"
    )
    assert hidden.shape[-1] == lm_head_weight.shape[-1], (
        f"hidden size {hidden.shape[-1]} is not that of lm_head_weight, {list(lm_head_weight.shape)} (under ZeRO-3 it "
        f"must be gathered)"
    )
    assert (barred_ids is None) == (is_barred is None), "barred_ids and is_barred are given together"
    scored: Tensor = _ChunkedLogProbs.apply(  # pyright: ignore[reportAssignmentType]
        hidden[mask],
        lm_head_weight,
        lm_head_bias,
        target_ids[mask],
        barred_ids,
        None if is_barred is None else is_barred[mask],
        temperature,
        chunk_tokens,
    )
    return scored.new_zeros(mask.shape).masked_scatter(mask, scored)


class _ChunkedLogProbs(torch.autograd.Function):
    """Forward keeps one log-normaliser for each position; backward recomputes the logits, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "positions hidden"],
        weight: Float[Tensor, "vocabulary hidden"],
        bias: Float[Tensor, " vocabulary"] | None,
        targets: Int[Tensor, " positions"],
        barred_ids: Int[Tensor, " barred"] | None,
        is_barred: Bool[Tensor, " positions"] | None,
        temperature: float,
        chunk_tokens: int,
    ) -> Float[Tensor, " positions"]:
        log_normalizer = hidden.new_empty(len(hidden), dtype=_softmax_dtype(hidden))
        logprobs = torch.empty_like(log_normalizer)
        for rows in _chunks(len(hidden), chunk_tokens):
            logits = _logits(hidden[rows], weight, bias, temperature)
            _bar(logits, barred_ids, is_barred, rows)
            chosen = logits.gather(-1, targets[rows, None]).squeeze(-1)
            log_normalizer[rows] = _log_sum_exp_over(logits)
            logprobs[rows] = chosen - log_normalizer[rows]
            del logits  # before the next chunk's are made
        ctx.save_for_backward(hidden, weight, bias, targets, barred_ids, is_barred, log_normalizer)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return logprobs

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (torch's decorator hides the names)
        ctx: Any, grad_logprobs: Float[Tensor, " positions"]
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, barred_ids, is_barred, log_normalizer = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        # Chunks are added up in the softmax's dtype: in bfloat16 the late ones would vanish in the sum.
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=log_normalizer.dtype) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=log_normalizer.dtype) if needs_bias else None
        for rows in _chunks(len(hidden), ctx.chunk_tokens):
            logits = _logits(hidden[rows], weight, bias, ctx.temperature)
            _bar(logits, barred_ids, is_barred, rows)
            grad_logits = _grad_logits(
                logits, log_normalizer[rows], targets[rows], grad_logprobs[rows] / ctx.temperature
            )
            if grad_bias is not None:
                grad_bias += grad_logits.sum(dim=0)
            grad_logits = grad_logits.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad_logits @ weight
            if grad_weight is not None:
                _add_product(grad_weight, grad_logits.T, hidden[rows])
            del logits, grad_logits
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def _softmax_dtype(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)


def _chunks(num_positions: int, chunk_tokens: int) -> list[slice]:
    return [slice(start, start + chunk_tokens) for start in range(0, num_positions, chunk_tokens)]


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
) -> Float[Tensor, "chunk vocabulary"]:
    """Tempered logits in the softmax's dtype; a fresh tensor that the caller may overwrite."""
    return torch.nn.functional.linear(hidden, weight, bias).to(_softmax_dtype(hidden)).div_(temperature)


def _log_sum_exp_over(logits: Float[Tensor, "chunk vocabulary"]) -> Float[Tensor, " chunk"]:
    """As `torch.logsumexp`, written over the logits: that would make a second tensor of their size."""
    largest = logits.amax(dim=-1)
    return logits.sub_(largest[:, None]).exp_().sum(dim=-1).log_().add_(largest)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Total += left @ right, without a tensor for the product where the types allow it."""
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _bar(
    logits: Float[Tensor, "chunk vocabulary"],
    barred_ids: Int[Tensor, " barred"] | None,
    is_barred: Bool[Tensor, " positions"] | None,
    rows: slice,
) -> None:
    """Take the barred tokens out of the softmax of a chunk, in place; no gradient reaches their logits then."""
    if barred_ids is not None and is_barred is not None:
        logits[:, barred_ids] = logits[:, barred_ids].masked_fill(is_barred[rows, None], -torch.inf)


def _grad_logits(
    logits: Float[Tensor, "chunk vocabulary"],
    log_normalizer: Float[Tensor, " chunk"],
    targets: Int[Tensor, " chunk"],
    grad: Float[Tensor, " chunk"],
) -> Float[Tensor, "chunk vocabulary"]:
    """(one-hot(target) - softmax) * grad, written over `logits`: one [chunk, V] tensor is all there is."""
    probabilities = logits.sub_(log_normalizer[:, None]).exp_()
    return probabilities.mul_(-grad[:, None]).scatter_add_(-1, targets[:, None], grad[:, None])
