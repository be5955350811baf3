"""What an objective is given, and what it gives back.

Before it on the trajectory path: `trainer/collate` pads trajectories into rows and `logprobs.py` scores them. After it:
`trajectory_balance.py` turns a batch into a loss. Letters in the shapes: `trajectories` N, `tokens` T (padded length).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tbactl.errors import TaskError, TbactlError
from tbactl.objectives.metrics import Metric

_REMEDIES = {
    "policy_logprobs": "The policy has diverged: lower `trainer.learning_rate` or `trainer.max_grad_norm` and resume "
    "from the last checkpoint.",
    "reference_logprobs": "The reference policy gives a sampled token no probability: check the weights at "
    '`policy.path` and try `policy.dtype = "float32"`.',
    "behavior_logprobs": "The searcher's engine reported them: check its dtype and its weights.",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class ObjectiveBatch:
    """One micro-batch: N padded trajectories of `num_groups` prompts, each prompt's group whole.

    Log-probs are in nats, of logits divided by the sampling temperature, for policy, reference and behaviour alike.
    What stands at positions outside `completion_mask` has no effect, not even NaN. Valid once built.

    Attributes:
        policy_logprobs: log pi_theta of each token; gradients flow through it.
        reference_logprobs: log pi_ref of each token.
        behavior_logprobs: log-probs under the weights that generated; for ratios and metrics.
        completion_mask: True on completion tokens (EOS included when it was generated), made from lengths.
        rewards: one for each trajectory, in the task's own unit.
        group_index: which of the batch's prompts a row belongs to, in [0, num_groups); rows come in any order.
        num_groups: prompts in this micro-batch; each owns at least one row.
        num_prompt_tokens: length of each trajectory's prompt.
        num_trajectories_global: trajectories of the whole optimizer step, over all micro-batches and ranks. Losses
            are divided by it, so that those of all micro-batches *add up* to the mean over the step. Whoever averages
            over ranks or accumulation steps (DeepSpeed does both) has to multiply that factor back.
        num_groups_global: prompts of the whole optimizer step; for losses that are means over prompts.
        num_tokens_global: completion tokens of the whole optimizer step; for losses that are means over tokens.
        max_completion_tokens: the longest a completion may be, by recipe.
        beta: KL coefficient > 0, in reward units per nat; T times the recipe's where the target has a temperature T.
        log_z: the learned log Z of each prompt, in nats, with gradients; None unless an objective requires it.
        reference_exponent: power of the reference in the target, pi_ref^this exp(r / beta) / Z: 1 / (gamma T) > 0.

    Raises:
        AssertionError: shapes, dtypes, or group indices do not fit together.
        TaskError: a reward is not a finite number.
        TbactlError: a log-prob of a completion token is not finite.
    """

    policy_logprobs: Float[Tensor, "trajectories tokens"]
    reference_logprobs: Float[Tensor, "trajectories tokens"]
    behavior_logprobs: Float[Tensor, "trajectories tokens"]
    completion_mask: Bool[Tensor, "trajectories tokens"]
    rewards: Float[Tensor, " trajectories"]
    group_index: Int[Tensor, " trajectories"]
    num_groups: int
    num_prompt_tokens: Int[Tensor, " trajectories"]
    num_trajectories_global: int
    num_groups_global: int
    num_tokens_global: int
    max_completion_tokens: int
    beta: float
    log_z: Float[Tensor, " groups"] | None = None
    reference_exponent: float = 1.0

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_groups()
        self._check_finite()

    def _check_shapes(self) -> None:
        assert self.policy_logprobs.dim() == 2, (
            f"policy_logprobs must be [trajectories, tokens], got {list(self.policy_logprobs.shape)}"
        )
        num_trajectories, num_tokens = self.policy_logprobs.shape
        assert num_trajectories > 0, "a batch holds at least one trajectory"
        for name in ("policy_logprobs", "reference_logprobs", "behavior_logprobs", "completion_mask"):
            shape = list(getattr(self, name).shape)
            assert shape == [num_trajectories, num_tokens], (
                f"{name} must be {[num_trajectories, num_tokens]} like policy_logprobs, got {shape}"
            )
        for name in ("rewards", "group_index", "num_prompt_tokens"):
            shape = list(getattr(self, name).shape)
            assert shape == [num_trajectories], f"{name} must be {[num_trajectories]}, one for each row, got {shape}"
        for name in ("policy_logprobs", "reference_logprobs", "behavior_logprobs", "rewards"):
            dtype = getattr(self, name).dtype
            # A sum over hundreds of tokens in bfloat16 is off by whole nats.
            assert dtype in (torch.float32, torch.float64), f"{name} must be float32 or float64, got {dtype}"
        if self.log_z is not None:
            shape = list(self.log_z.shape)
            assert shape == [self.num_groups], f"log_z must be {[self.num_groups]}, one for each prompt, got {shape}"
        assert self.completion_mask.dtype == torch.bool, (
            f"completion_mask must be bool, got {self.completion_mask.dtype}"
        )
        assert not self.group_index.dtype.is_floating_point, (
            f"group_index must be integer, got {self.group_index.dtype}"
        )

    def _check_groups(self) -> None:
        assert self.beta > 0.0, f"beta must be > 0, got {self.beta}"
        assert self.reference_exponent > 0.0, f"reference_exponent must be > 0, got {self.reference_exponent}"
        num_trajectories = len(self.rewards)
        assert self.num_trajectories_global >= num_trajectories, (
            f"num_trajectories_global counts the whole step, so it is >= {num_trajectories}, the rows of this "
            f"micro-batch; got {self.num_trajectories_global}"
        )
        present = torch.unique(self.group_index).tolist()
        assert present == list(range(self.num_groups)), (
            f"every prompt in [0, {self.num_groups}) must own a row and no other index may occur; got {present}"
        )
        assert self.num_groups_global >= self.num_groups, (
            f"num_groups_global counts the whole step, so it is >= {self.num_groups}, the prompts of this micro-batch; "
            f"got {self.num_groups_global}"
        )

    def _check_finite(self) -> None:
        # Counted for all four first: on an accelerator that is one synchronisation instead of four.
        fields = (*_REMEDIES, "rewards")
        broken = [~torch.isfinite(getattr(self, name)) for name in fields]
        rows = [*((bad & self.completion_mask).any(dim=1) for bad in broken[:-1]), broken[-1]]
        for name, count in zip(fields, torch.stack(rows).sum(dim=1).tolist(), strict=True):
            if count:
                problem = f"{name} hold NaN or infinity in {count} of {len(self.rewards)} trajectories."
                if name == "rewards":
                    raise TaskError(f"{problem} A reward must be a finite number: correct the task's `score`.")
                raise TbactlError(f"{problem} {_REMEDIES[name]}")

    def sequence_log_ratio(
        self, numerator: Float[Tensor, "trajectories tokens"], denominator: Float[Tensor, "trajectories tokens"]
    ) -> Float[Tensor, " trajectories"]:
        """Sum over completion tokens of numerator - denominator, both log-probs of this batch; in nats."""
        return self.token_log_ratio(numerator, denominator).sum(dim=1)

    def token_log_ratio(
        self, numerator: Float[Tensor, "trajectories tokens"], denominator: Float[Tensor, "trajectories tokens"]
    ) -> Float[Tensor, "trajectories tokens"]:
        """Numerator - denominator at completion tokens, 0 elsewhere; in nats.

        `where` rather than a product with the mask: 0 * NaN would let padding reach the loss and the gradient.
        """
        return torch.where(self.completion_mask, numerator - denominator, 0.0)


class Objective(Protocol):
    """Turns a micro-batch into a scalar to minimise. Built from the recipe's `objective.options`; keeps no state."""

    required_fields: frozenset[str]
    """Fields of `ObjectiveBatch` that the loss reads; the trainer may fill the others with anything finite."""

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's loss, and what to report about it."""
        ...
