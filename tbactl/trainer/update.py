"""One optimizer step: groups to micro-batches, to log-probs, to loss, to gradients, to new weights.

Before this file on the way of a trajectory: `learner.py`. After it: `objectives/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tbactl.config.sections import TrainerSection
from tbactl.objectives.batch import Objective, ObjectiveBatch
from tbactl.objectives.metrics import Metric, reduce_metrics
from tbactl.trainer.collate import collate
from tbactl.trainer.deepspeed_backend import DeepSpeedBackend
from tbactl.trainer.layout import plan_micro_batches
from tbactl.trainer.ranks import RankGroup
from tbactl.trainer.reference import ReferenceScorer
from tbactl.trainer.scoring import score_only_group
from tbactl.trainer.timing import Stopwatch
from tbactl.types import TrajectoryGroup


class Updater:
    """Carries out optimizer steps; all ranks call it with the same groups.

    Args:
        section: number of ranks, token budget.
        backend: the policy that is trained.
        reference: the frozen policy.
        objective: the loss.
        ranks: this rank and the others.
        shares_prompt: layout of forward passes.
    """

    def __init__(
        self,
        section: TrainerSection,
        *,
        backend: DeepSpeedBackend,
        reference: ReferenceScorer,
        objective: Objective,
        ranks: RankGroup,
        shares_prompt: bool,
    ) -> None:
        self._budget_tokens = section.micro_batch_tokens
        self._backend = backend
        self._reference = reference
        self._objective = objective
        self._ranks = ranks
        self._shares_prompt = shares_prompt

    def update(
        self, groups: Sequence[TrajectoryGroup], *, beta: float, should_abort: Callable[[], bool]
    ) -> dict[str, float]:
        """One step on the groups, dealt among the ranks. Metrics are over all ranks, durations this rank's.

        Args:
            groups: at least one for each rank.
            beta: KL coefficient.
            should_abort: asked before each micro-batch; rank 0's answer counts.

        Returns:
            Metrics; empty when aborted, with weights and gradients as if nothing had been.

        Raises:
            TbactlError: log-probs or gradients are not finite.
        """
        watch = Stopwatch()
        plan = plan_micro_batches(
            groups,
            num_ranks=self._ranks.size,
            budget_tokens=self._budget_tokens,
            shares_prompt=self._shares_prompt,
        )[self._ranks.rank]
        num_trajectories = sum(len(group.trajectories) for group in groups)
        parts: list[dict[str, Metric]] = []
        for number, indexes in enumerate(plan):
            if self._ranks.agree(should_abort()):
                self._backend.discard()
                return {}
            is_last = number == len(plan) - 1
            if indexes:
                members = [groups[index] for index in indexes]
                parts.append(self._pass(members, beta=beta, total=num_trajectories, is_last=is_last, watch=watch))
            else:
                self._pass_empty(is_last=is_last)
        with watch.measure("optimizer"):
            report = self._backend.step()
        return reduce_metrics(parts, all_reduce=self._ranks.add) | {
            "trainer/grad_norm/value": report.grad_norm,
            "trainer/learning_rate/value": report.learning_rate,
            "trainer/passes/sum": float(len(plan)),
            **{f"trainer/{name}_s/sum": seconds for name, seconds in watch.seconds.items()},
        }

    def _pass(
        self, groups: list[TrajectoryGroup], *, beta: float, total: int, is_last: bool, watch: Stopwatch
    ) -> dict[str, Metric]:
        device = self._backend.device
        with watch.measure("collate"):
            batch = collate(groups, shares_prompt=self._shares_prompt).to(device)
        is_new = torch.tensor([uid not in self._reference for uid in batch.uids], device=device)
        work = {
            "trainer/pass_tokens/mean": Metric.of(torch.tensor([batch.rows.num_tokens], device=device)),
            "trainer/reference_computed/share": Metric.of(is_new),
        }
        with watch.measure("reference"):
            reference_logprobs = self._reference.logprobs(groups, batch, device=device)
        with watch.measure("forward"):
            objective_batch = ObjectiveBatch(
                policy_logprobs=self._backend.logprobs(batch),
                reference_logprobs=reference_logprobs,
                behavior_logprobs=batch.behavior_logprobs,
                completion_mask=batch.completion_mask,
                rewards=batch.rewards,
                group_index=batch.group_index,
                num_groups=batch.num_groups,
                num_trajectories_global=total,
                beta=beta,
            )
            loss, metrics = self._objective(objective_batch)
        with watch.measure("backward"):
            self._backend.backward(loss, is_last=is_last)
        return metrics | work

    def _pass_empty(self, *, is_last: bool) -> None:
        """A pass whose loss is zero, for ranks with fewer micro-batches than others: collectives must match."""
        batch = collate([score_only_group([0], [[0]])], shares_prompt=self._shares_prompt)
        self._backend.backward(0.0 * self._backend.logprobs(batch.to(self._backend.device)).sum(), is_last=is_last)
