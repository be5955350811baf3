"""One optimizer step: groups to micro-batches, to log-probs, to loss, to gradients, to new weights.

Before this file on the way of a trajectory: `learner.py`. After it: `objectives/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tbactl.config.sections import RunConfig
from tbactl.objectives.batch import Objective, ObjectiveBatch
from tbactl.objectives.metrics import Metric, reduce_metrics
from tbactl.objectives.trajectory_balance import balance_metrics, balance_residual
from tbactl.protocols import UpdateReport
from tbactl.telemetry.trace import Trace
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
        run: token budget, longest completion.
        backend: the policy that is trained.
        reference: the frozen policy.
        objective: the loss.
        ranks: this rank and the others.
        shares_prompt: layout of forward passes.
        trace: of this process.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        backend: DeepSpeedBackend,
        reference: ReferenceScorer,
        objective: Objective,
        ranks: RankGroup,
        shares_prompt: bool,
        trace: Trace,
    ) -> None:
        self._budget_tokens = run.trainer.micro_batch_tokens
        self._max_completion_tokens = run.searchers.max_new_tokens
        self._backend = backend
        self._reference = reference
        self._objective = objective
        self._ranks = ranks
        self._shares_prompt = shares_prompt
        self._trace = trace

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        *,
        beta: float,
        should_abort: Callable[[], bool],
        reference_exponent: float = 1.0,
    ) -> UpdateReport | None:
        """One step on the groups, dealt among the ranks. Metrics are over all ranks, durations this rank's.

        Args:
            groups: at least one for each rank.
            beta: KL coefficient.
            should_abort: asked before each micro-batch; rank 0's answer counts.
            reference_exponent: power of the reference in the target.

        Returns:
            Metrics and residuals; None when aborted, with weights and gradients as if nothing had been.

        Raises:
            TbactlError: log-probs or gradients are not finite.
        """
        watch = Stopwatch(self._trace)
        plan = plan_micro_batches(
            groups,
            num_ranks=self._ranks.size,
            budget_tokens=self._budget_tokens,
            shares_prompt=self._shares_prompt,
        )[self._ranks.rank]
        step = _Step.of(groups, beta=beta, reference_exponent=reference_exponent, device=self._backend.device)
        parts: list[dict[str, Metric]] = []
        for number, indexes in enumerate(plan):
            if self._ranks.agree(should_abort()):
                self._backend.discard()
                return None
            is_last = number == len(plan) - 1
            if indexes:
                parts.append(self._pass(step, indexes, is_last=is_last, watch=watch))
            else:
                self._pass_empty(is_last=is_last)
        with watch.measure("optimizer"):
            report = self._backend.step()
        self._ranks.add(step.residuals)
        metrics = reduce_metrics(parts, all_reduce=self._ranks.add) | {
            "trainer/grad_norm/value": report.grad_norm,
            "trainer/learning_rate/value": report.learning_rate,
            "trainer/passes/sum": float(len(plan)),
            **{f"trainer/{name}_s/sum": seconds for name, seconds in watch.seconds.items()},
        }
        uids = [trajectory.uid for group in groups for trajectory in group.trajectories]
        return UpdateReport(metrics=metrics, residuals=dict(zip(uids, step.residuals.tolist(), strict=True)))

    def _pass(self, step: _Step, indexes: list[int], *, is_last: bool, watch: Stopwatch) -> dict[str, Metric]:
        device = self._backend.device
        groups = [step.groups[index] for index in indexes]
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
            policy_logprobs, log_z = self._backend.score(batch)
            objective_batch = ObjectiveBatch(
                policy_logprobs=policy_logprobs,
                reference_logprobs=reference_logprobs,
                behavior_logprobs=batch.behavior_logprobs,
                completion_mask=batch.completion_mask,
                rewards=batch.rewards,
                group_index=batch.group_index,
                num_groups=batch.num_groups,
                num_prompt_tokens=batch.num_prompt_tokens,
                num_trajectories_global=len(step.residuals),
                num_groups_global=len(step.groups),
                num_tokens_global=step.num_tokens,
                max_completion_tokens=self._max_completion_tokens,
                beta=step.beta,
                reference_exponent=step.reference_exponent,
                log_z=log_z,
            )
            loss, metrics = self._objective(objective_batch)
        with torch.no_grad():
            residual, estimated_log_z = balance_residual(objective_batch)
            step.note_residuals(indexes, step.beta * residual)
            # For every objective; one that has a residual of its own reports that.
            balance = balance_metrics(objective_batch, residual=residual, log_z=estimated_log_z)
        with watch.measure("backward"):
            self._backend.backward(loss, is_last=is_last)
        return balance | metrics | work

    def _pass_empty(self, *, is_last: bool) -> None:
        """A pass whose loss is zero, for ranks with fewer micro-batches than others: collectives must match."""
        self._reference.accompany(device=self._backend.device)
        batch = collate([score_only_group([0], [[0]])], shares_prompt=self._shares_prompt)
        policy_logprobs, log_z = self._backend.score(batch.to(self._backend.device))
        # The sum of nothing, not zero times a log-prob: that of a barred token is infinite.
        outputs = policy_logprobs[:, :0].sum() + (0.0 if log_z is None else 0.0 * log_z.sum())
        self._backend.backward(outputs, is_last=is_last)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Step:
    """What all micro-batches of an optimizer step share, and the residuals that they fill in."""

    groups: Sequence[TrajectoryGroup]
    beta: float
    reference_exponent: float
    num_tokens: int
    first: tuple[int, ...]
    """Number of each group's first trajectory within the step."""
    residuals: Tensor
    """Of all trajectories, groups in order; 0 where another rank computes them."""

    @classmethod
    def of(
        cls, groups: Sequence[TrajectoryGroup], *, beta: float, reference_exponent: float, device: torch.device
    ) -> _Step:
        sizes = [len(group.trajectories) for group in groups]
        lengths = (len(trajectory.completion.token_ids) for group in groups for trajectory in group.trajectories)
        return cls(
            groups=groups,
            beta=beta,
            reference_exponent=reference_exponent,
            num_tokens=sum(lengths),
            first=tuple(accumulate(sizes[:-1], initial=0)),
            residuals=torch.zeros(sum(sizes), dtype=torch.float64, device=device),
        )

    def note_residuals(self, indexes: Sequence[int], residuals: Tensor) -> None:
        """Those of a micro-batch made of the groups at `indexes`, in that order."""
        places = [self.first[i] + j for i in indexes for j in range(len(self.groups[i].trajectories))]
        self.residuals[places] = residuals.to(self.residuals.dtype)
