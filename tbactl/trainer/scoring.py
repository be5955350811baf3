"""Log-probs of a micro-batch's completion tokens under a causal language model, at the sampling temperature.

Before this file on the way of a trajectory: `collate.py`. After it: `objectives/batch.py`.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from tbactl.errors import ConfigError
from tbactl.objectives.logprobs import token_logprobs
from tbactl.trainer.collate import MicroBatch, PaddedRows, SharedPromptRows, collate
from tbactl.types import Completion, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

# Mean difference over tokens, in nats, between two ways to compute the same log-probs.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE_TOLERANCE = 0.1


class ScoringModel(torch.nn.Module):
    """A language model without its loss and its sampling: token log-probs, nothing else.

    It is what DeepSpeed wraps, so that one call is one forward pass. The vocabulary's logits exist for
    `chunk_tokens` positions at a time only, and only positions of completion tokens reach the head.

    Args:
        policy: the model; its transformer and its head are used apart.
        temperature: of sampling, > 0.
        chunk_tokens: positions whose logits exist at the same time.
    """

    def __init__(self, policy: PreTrainedModel, *, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self.policy = policy
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens

    @property
    def head(self) -> torch.nn.Module:
        """The layer that turns hidden states into logits."""
        head = self.policy.get_output_embeddings()
        assert head is not None
        return head

    def forward(self, batch: MicroBatch, *, temperature: float | None = None) -> Float[Tensor, "trajectories tokens"]:
        """Log-probs in nats, 0 outside the completion mask.

        Args:
            batch: on the model's device.
            temperature: instead of the model's own.
        """
        mask = batch.completion_mask
        hidden = self._hidden_states(batch.rows)[batch.source[mask]]
        scored = token_logprobs(
            hidden,
            lm_head_weight=self._head_parameter("weight"),
            lm_head_bias=getattr(self.head, "bias", None),
            target_ids=batch.target_ids[mask],
            mask=torch.ones_like(batch.target_ids[mask], dtype=torch.bool),
            temperature=self.temperature if temperature is None else temperature,
            chunk_tokens=self.chunk_tokens,
        )
        return scored.new_zeros(mask.shape).masked_scatter(mask, scored)

    def _head_parameter(self, name: str) -> Tensor:
        parameter = getattr(self.head, name)
        assert isinstance(parameter, Tensor)
        return parameter

    def _hidden_states(self, rows: PaddedRows | SharedPromptRows) -> Float[Tensor, "positions hidden"]:
        if isinstance(rows, PaddedRows):
            return self._transformer(input_ids=rows.input_ids, use_cache=False).flatten(0, 1)
        cache = DynamicCache()
        of_prompts = self._transformer(input_ids=rows.prompt_ids, past_key_values=cache, use_cache=True)
        cache.batch_select_indices(rows.row_group)
        visible = rows.attention_mask
        # Additive, which every attention implementation of transformers takes. Finite, so that the softmax of filler,
        # which sees nothing, has no NaN.
        mask = torch.zeros(visible.shape, dtype=of_prompts.dtype, device=visible.device)
        mask.masked_fill_(~visible, torch.finfo(of_prompts.dtype).min)
        of_rows = self._transformer(
            input_ids=rows.input_ids,
            position_ids=rows.position_ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        )
        return torch.cat([of_prompts.flatten(0, 1), of_rows.flatten(0, 1)])

    def _transformer(self, **inputs: Any) -> Float[Tensor, "rows length hidden"]:
        return self.policy.base_model(**inputs).last_hidden_state


def check_scoring(model: ScoringModel) -> bool:
    """Compare our log-probs with those of the model's own logits on a small random batch.

    Returns:
        Whether the layout with shared prompts gives the same log-probs too.

    Raises:
        ConfigError: the model does something to its logits that is not done here (a soft cap, a scale).
    """
    groups = _random_groups(vocabulary=int(model.policy.config.vocab_size))
    device = next(model.policy.parameters()).device
    with torch.no_grad():
        padded = collate(groups, shares_prompt=False).to(device)
        ours, own = model(padded), _own_logprobs(model, padded)
        tolerance = TOLERANCE.get(model.policy.dtype, COARSE_TOLERANCE)
        difference = _mean_difference(ours, own, padded)
        if not difference <= tolerance:
            raise ConfigError(
                f"policy {type(model.policy).__name__}: its own log-probs differ from hidden states times head by "
                f"{difference:.2g} nats a token (allowed: {tolerance:g}); it transforms its logits (a soft cap or a "
                f"scale), which tbactl does not support yet; choose another model."
            )
        return _shares_prompt(model, groups, expected=ours, tolerance=tolerance, device=device)


def _own_logprobs(model: ScoringModel, batch: MicroBatch) -> Tensor:
    assert isinstance(batch.rows, PaddedRows)
    logits = model.policy(input_ids=batch.rows.input_ids, use_cache=False).logits.float() / model.temperature
    picked = logits.flatten(0, 1).log_softmax(dim=-1)[batch.source]
    return picked.gather(-1, batch.target_ids[..., None]).squeeze(-1)


def _mean_difference(a: Tensor, b: Tensor, batch: MicroBatch) -> float:
    return float((a - b).abs()[batch.completion_mask].mean())


def _shares_prompt(
    model: ScoringModel, groups: list[TrajectoryGroup], *, expected: Tensor, tolerance: float, device: torch.device
) -> bool:
    if _has_special_attention(model.policy):
        return False
    shared = collate(groups, shares_prompt=True).to(device)
    try:
        difference = _mean_difference(model(shared), expected, shared)
    except Exception as error:  # whatever an architecture without such a cache does with it
        logger.warning("prompts are not shared: %s: %s", type(error).__name__, error)
        return False
    if not difference <= tolerance:
        logger.warning("prompts are not shared: log-probs would differ by %.2g nats a token", difference)
        return False
    return True


def _has_special_attention(policy: PreTrainedModel) -> bool:
    """Windows and recurrent layers, which a small batch does not show."""
    config = policy.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds != {"full_attention"} or bool(
        getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    )


def _random_groups(*, vocabulary: int) -> list[TrajectoryGroup]:
    rng = random.Random(0)
    return [
        score_only_group(
            [rng.randrange(vocabulary) for _ in range(prompt)],
            [[rng.randrange(vocabulary) for _ in range(length)] for length in lengths],
        )
        for prompt, lengths in ((3, (1, 5, 2)), (6, (4, 2, 3)))
    ]


def score_only_group(prompt: list[int], completions: list[list[int]]) -> TrajectoryGroup:
    """A group that is only scored: nothing but its tokens means anything."""
    return TrajectoryGroup(
        prompt_id=0,
        prompt_text="",
        prompt_token_ids=tuple(prompt),
        trajectories=tuple(
            Trajectory(
                uid=-1,
                completion=Completion(
                    token_ids=tuple(ids), logprobs=(0.0,) * len(ids), text="", finish_reason="length"
                ),
                reward=0.0,
            )
            for ids in completions
        ),
        searcher=0,
        sequence_number=0,
    )
