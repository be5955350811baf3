"""Log-probs of a micro-batch's completion tokens under a causal language model, at the sampling temperature.

Before this file on the way of a trajectory: `collate.py`. After it: `objectives/batch.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from tbactl.objectives.logprobs import token_logprobs
from tbactl.trainer.collate import MicroBatch, PaddedRows, SharedPromptRows
from tbactl.trainer.log_z_head import LogZHead
from tbactl.trainer.prompt_cache import PromptCache
from tbactl.types import Completion, Trajectory, TrajectoryGroup


class ScoringModel(torch.nn.Module):
    """A language model without its loss and its sampling: token log-probs, nothing else.

    It is what DeepSpeed wraps, so that one call is one forward pass. The vocabulary's logits exist for
    `chunk_tokens` positions at a time only, and only positions of completion tokens reach the head.

    Args:
        policy: the model; its transformer and its head are used apart.
        temperature: of sampling, > 0.
        chunk_tokens: positions whose logits exist at the same time.
        min_new_tokens: sampling gave the `stop_ids` probability 0 at so many first tokens of a completion.
        stop_ids: tokens that end a completion.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        *,
        temperature: float,
        chunk_tokens: int,
        min_new_tokens: int = 0,
        stop_ids: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.policy = policy
        self.log_z_head: LogZHead | None = None
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens
        self.min_new_tokens = min_new_tokens
        self.stop_ids = sorted(stop_ids)

    @property
    def head(self) -> torch.nn.Module:
        """The layer that turns hidden states into logits."""
        head = self.policy.get_output_embeddings()
        assert head is not None
        return head

    def add_log_z_head(self, *, learning_rate: float, initial: float) -> None:
        """Learn log Z of prompts as well; before the model is moved to a device.

        Args:
            learning_rate: the head's own, > 0.
            initial: first log Z of every prompt, in nats.
        """
        hidden_size = self._head_parameter("weight").shape[1]
        self.log_z_head = LogZHead(hidden_size=hidden_size, learning_rate=learning_rate, initial=initial)

    def forward(
        self, batch: MicroBatch, *, temperature: float | None = None, with_log_z: bool = False
    ) -> Float[Tensor, "trajectories tokens"] | tuple[Float[Tensor, "trajectories tokens"], Float[Tensor, " groups"]]:
        """Log-probs in nats, 0 outside the completion mask.

        Args:
            batch: on the model's device.
            temperature: instead of that of sampling; of the model's plain distribution, in which nothing is barred.
            with_log_z: give the learned log Z of each prompt besides.
        """
        mask = batch.completion_mask
        hidden = self._hidden_states(batch.rows)
        scored = token_logprobs(
            hidden[batch.source[mask]],
            lm_head_weight=self._head_parameter("weight"),
            lm_head_bias=getattr(self.head, "bias", None),
            target_ids=batch.target_ids[mask],
            mask=torch.ones_like(batch.target_ids[mask], dtype=torch.bool),
            temperature=self.temperature if temperature is None else temperature,
            chunk_tokens=self.chunk_tokens,
            **({} if temperature is not None else self._barred(mask)),
        )
        logprobs = scored.new_zeros(mask.shape).masked_scatter(mask, scored)
        if not with_log_z:
            return logprobs
        assert self.log_z_head is not None
        return logprobs, self.log_z_head(hidden, batch)

    def _barred(self, mask: Bool[Tensor, "trajectories tokens"]) -> dict[str, Tensor]:
        """What sampling could not draw, for the completion tokens in their order."""
        if not self.min_new_tokens:
            return {}
        is_early = torch.arange(mask.shape[1], device=mask.device) < self.min_new_tokens
        stop_ids = torch.tensor(self.stop_ids, dtype=torch.long, device=mask.device)
        return {"barred_ids": stop_ids, "is_barred": is_early.expand(mask.shape)[mask]}

    def _head_parameter(self, name: str) -> Tensor:
        parameter = getattr(self.head, name)
        assert isinstance(parameter, Tensor)
        return parameter

    def _hidden_states(self, rows: PaddedRows | SharedPromptRows) -> Float[Tensor, "positions hidden"]:
        if isinstance(rows, PaddedRows):
            return self._transformer(input_ids=rows.input_ids, use_cache=False).flatten(0, 1)
        cache = PromptCache()
        of_prompts = self._transformer(input_ids=rows.prompt_ids, past_key_values=cache, use_cache=True)
        visible = rows.attention_mask
        # Additive, which every attention implementation of transformers takes. Finite, so that the softmax of filler,
        # which sees nothing, has no NaN.
        mask = torch.zeros(visible.shape, dtype=of_prompts.dtype, device=visible.device)
        mask.masked_fill_(~visible, torch.finfo(of_prompts.dtype).min)
        of_rows = self._transformer(
            input_ids=rows.input_ids,
            position_ids=rows.position_ids,
            attention_mask=mask,
            past_key_values=cache.continued(rows.row_group),
            use_cache=True,
        )
        return torch.cat([of_prompts.flatten(0, 1), of_rows.flatten(0, 1)])

    def _transformer(self, **inputs: Any) -> Float[Tensor, "rows length hidden"]:
        return self.policy.base_model(**inputs).last_hidden_state


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
