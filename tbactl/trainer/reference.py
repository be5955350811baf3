"""Reference log-probs, computed once for each trajectory: they change only when the reference policy is replaced."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from tbactl.trainer.collate import MicroBatch, collate
from tbactl.trainer.scoring import ScoringModel, score_only_group
from tbactl.types import TrajectoryGroup


class ReferenceScorer:
    """Log-probs under the reference policy, kept by trajectory uid, least recently used out first.

    Args:
        model: the reference policy, which takes no gradients; or what computes its log-probs.
        capacity: trajectories remembered; as many as the replay buffer holds, so that none that can be drawn again is
            computed again.
        shares_prompt: layout of the forward pass.
        any_rank: whether this is so on any rank. Set where a forward pass takes all ranks (ZeRO-3): then each computes
            something whenever one of them must.

    Raises:
        AssertionError: a parameter of the model takes gradients.
    """

    def __init__(
        self,
        model: ScoringModel | Callable[[MicroBatch], Tensor],
        *,
        capacity: int,
        shares_prompt: bool,
        any_rank: Callable[[bool], bool] | None = None,
    ) -> None:
        if isinstance(model, ScoringModel):
            assert not any(parameter.requires_grad for parameter in model.parameters()), (
                "the reference policy must be frozen: call requires_grad_(False) on it"
            )
            model.eval()
        self._model = model
        self._any_rank = any_rank
        self._capacity = capacity
        self._shares_prompt = shares_prompt
        self._known: OrderedDict[int, Tensor] = OrderedDict()

    def __contains__(self, uid: int) -> bool:
        """Whether a trajectory's log-probs are known."""
        return uid in self._known

    @property
    def weights(self) -> dict[str, Tensor]:
        """The reference's own parameters by name; none where another model computes its log-probs."""
        return dict(self._model.policy.named_parameters()) if isinstance(self._model, ScoringModel) else {}

    def forget(self) -> None:
        """The reference policy has changed: what is known is of another one."""
        self._known.clear()

    def logprobs(
        self, groups: Sequence[TrajectoryGroup], batch: MicroBatch, *, device: torch.device
    ) -> Float[Tensor, "trajectories tokens"]:
        """Log-probs of a micro-batch that was collated from `groups`; nats, 0 outside the completion mask."""
        missing = _only(groups, lambda uid: uid not in self)
        if self._must_compute(bool(missing)):
            self._compute(missing, device=device)
        known = torch.cat([self._recall(uid) for uid in batch.uids])
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        filled = torch.zeros(batch.completion_mask.shape, dtype=known.dtype, device=device)
        return filled.masked_scatter(batch.completion_mask, known.to(device))

    def accompany(self, *, device: torch.device) -> None:
        """A rank that has nothing to compute: where a forward pass takes all ranks, be there if another has."""
        if self._must_compute(False):
            self._compute([], device=device)

    def _must_compute(self, wish: bool, /) -> bool:
        return wish if self._any_rank is None else self._any_rank(wish)

    def _compute(self, groups: Sequence[TrajectoryGroup], *, device: torch.device) -> None:
        batch = collate(groups or [score_only_group([0], [[0]])], shares_prompt=self._shares_prompt).to(device)
        with torch.no_grad():
            logprobs = self._model(batch).cpu()
        if not groups:
            return
        for uid, row, mask in zip(batch.uids, logprobs, batch.completion_mask.cpu(), strict=True):
            # Their own memory: a view would keep the whole micro-batch alive.
            self._known[uid] = row[mask].clone()

    def _recall(self, uid: int) -> Tensor:
        self._known.move_to_end(uid)
        return self._known[uid]


def _only(groups: Sequence[TrajectoryGroup], wanted: Callable[[int], bool]) -> list[TrajectoryGroup]:
    """The groups with those trajectories that are wanted, each once; without groups of which nothing is left."""
    left = []
    for group in groups:
        by_uid = {trajectory.uid: trajectory for trajectory in group.trajectories if wanted(trajectory.uid)}
        if by_uid:
            left.append(replace(group, trajectories=tuple(by_uid.values())))
    return left
