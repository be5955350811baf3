"""What a task may offer to `tbactl eval` beyond `protocols.Task`; without it a task is evaluated as in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tbactl.protocols import Generate
from tbactl.types import EvaluationResult


@runtime_checkable
class CheckpointEvaluation(Protocol):
    """A task that measures a checkpoint more closely than during a run, or writes a report."""

    def evaluate_checkpoint(
        self, generate: Generate, *, limit: int, seed: int, policy: str, output: Path | None
    ) -> EvaluationResult:
        """As `Task.evaluate`, which it is called instead of.

        Args:
            generate: answers prompts with the checkpoint's policy.
            limit: as in `Task.evaluate`.
            seed: likewise.
            policy: the checkpoint as the user named it.
            output: where files may be written; None: nowhere. `result.json` and `evaluation.log` are taken.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One policy of several that are compared."""

    run: str
    """Label, unique among the runs compared."""
    step: int
    """Optimizer steps; 0: the policy that the run started from."""
    result: EvaluationResult


@runtime_checkable
class FrontierNeeds(Protocol):
    """A task class whose frontier needs options; asked before anything is evaluated for it."""

    @staticmethod
    def frontier_problems(options: Mapping[str, Any]) -> Sequence[str]:
        """One sentence for each option that is missing.

        Args:
            options: `[task.options]` as they were given.
        """
        ...


@runtime_checkable
class FrontierDrawing(Protocol):
    """A task class that draws what its runs gain against what that costs: `tbactl eval --frontier`."""

    @staticmethod
    def frontier_metrics() -> Sequence[str]:
        """Names of the metrics that the comparison is about, as columns of the table that is printed."""
        ...

    @staticmethod
    def draw_frontier(points: Sequence[FrontierPoint], *, output: Path) -> list[Path]:
        """Write pictures and tables into a directory that is there, and return them.

        Args:
            points: those of a run together, by rising step.
            output: the directory.
        """
        ...
