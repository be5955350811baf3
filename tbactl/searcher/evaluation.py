"""Evaluations during a run: searcher 0 answers the task's held-out prompts with the engine and weights it has."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tbactl.clock import Clock
from tbactl.config.layout import ProcessConfig
from tbactl.engines.generate import generate
from tbactl.engines.stop_strings import with_stop_strings
from tbactl.errors import TbactlError
from tbactl.ipc.control_page import AlarmKind, ControlPage, Slot
from tbactl.protocols import Engine, FinishedRequest, Task
from tbactl.types import Completion, EvaluationResult, Prompt, SamplingParams

logger = logging.getLogger(__name__)

# In the shared-memory directory: the last version evaluated in this session, for a restarted searcher 0.
MARKER = "evaluated"


class EvaluationAbortedError(Exception):
    """The run ends, or the evaluation takes too long."""


class Evaluator:
    """Evaluates when the trainer asks for it, once for each version asked for.

    Args:
        config: of this searcher; only searcher 0 evaluates, and only where `evaluation.num_prompts` > 0.
        task: whose `evaluate` is called; another object than the scorer's thread uses.
        engine: answers the held-out prompts; its training requests go on meanwhile.
        page: where the trainer asks.
        resumed_version: versions before it were evaluated before the run was resumed; 0 for a new run.
        clock: for durations.
    """

    def __init__(
        self,
        config: ProcessConfig,
        *,
        task: Task,
        engine: Engine,
        page: ControlPage,
        resumed_version: int,
        clock: Clock,
    ) -> None:
        self._run = config.run
        self._task = task
        self._engine = engine
        self._trainer = page.trainer()
        self._supervisor = page.supervisor
        self._slot: Slot = page.searcher(config.index)
        self._clock = clock
        self._lines: Path = config.layout.evaluations
        self._marker = config.shm.root / MARKER
        self._is_active = config.index == 0 and config.run.evaluation.num_prompts > 0
        # The policy of the checkpoint itself may have been evaluated before; later ones will be other policies now.
        has_line = _has_evaluation(self._lines, resumed_version)
        self._last_done = resumed_version if has_line else resumed_version - 1
        if self._is_active and (marked := _read_marker(self._marker)) is not None:
            self._last_done = marked
        self._slot.set(evaluated_version_plus_1=self._last_done + 1)

    @property
    def asked_version(self) -> int | None:
        """The version that is to be evaluated now, or None."""
        version = self._trainer.get("evaluate_version")
        return version if self._is_active and version > self._last_done else None

    def evaluate(
        self, version: int, *, on_other: Callable[[FinishedRequest], None], on_step: Callable[[], None]
    ) -> None:
        """Evaluate the weights that the engine holds and append the result to evaluations.jsonl.

        What goes wrong in an evaluation is an alarm, not the end of the run; a task that breaks its contract is.

        Args:
            version: what the trainer asked for; the engine holds it, or a newer one where that came first.
            on_other: takes requests that are not of the evaluation.
            on_step: called after each step of the engine; may raise `EvaluationAbortedError`.
        """
        start_s = self._clock.monotonic_s()
        self._slot.set(evaluating=1)
        try:
            result = self._measure(version, start_s=start_s, on_other=on_other, on_step=on_step)
        except TbactlError:
            raise
        except EvaluationAbortedError as error:
            logger.error("evaluation version=%d given up: %s", version, error)
            self._alarm()
        except Exception:
            logger.exception("evaluation version=%d failed", version)
            self._alarm()
        else:
            self._record(result, seconds=self._clock.monotonic_s() - start_s)
        finally:
            self._slot.set(evaluating=0)
        self._last_done = version
        _write_marker(self._marker, version)
        self._slot.set(evaluated_version_plus_1=version + 1)

    def _measure(
        self,
        version: int,
        *,
        start_s: float,
        on_other: Callable[[FinishedRequest], None],
        on_step: Callable[[], None],
    ) -> EvaluationResult:
        limit_s = self._run.supervision.evaluation_timeout_s
        num_calls = 0

        def check() -> None:
            if self._clock.monotonic_s() - start_s > limit_s:
                raise EvaluationAbortedError(f"it took longer than supervision.evaluation_timeout_s = {limit_s:g}")
            on_step()

        def answer(prompts: Sequence[Prompt], num_completions: int, sampling: SamplingParams) -> list[list[Completion]]:
            nonlocal num_calls
            num_calls += 1
            return generate(
                self._engine,
                prompts,
                num_completions,
                with_stop_strings(sampling, self._run.searchers.stop_strings),
                max_prompt_tokens=self._run.searchers.max_prompt_tokens,
                name=f"evaluation-{version}-{num_calls}",
                seed=self._run.seed + num_calls,
                on_other=on_other,
                on_step=check,
            )

        return self._task.evaluate(
            answer,
            limit=self._run.evaluation.num_prompts,
            seed=self._run.seed,
            policy_version=self._engine.policy_version,
        )

    def _alarm(self) -> None:
        self._slot.set(alarm_kind=AlarmKind.EVALUATION)
        self._slot.add(num_alarms=1)

    def _record(self, result: EvaluationResult, *, seconds: float) -> None:
        line = msgspec.to_builtins(dataclasses.replace(result, seconds=result.seconds or seconds))
        line["wall_s"] = self._clock.wall_s()
        line["elapsed_s"] = self._clock.monotonic_s() - self._supervisor.get("started_ns") / 1e9
        with self._lines.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        logger.info(
            "evaluation version=%d seconds=%.1f %s",
            result.policy_version,
            seconds,
            " ".join(f"{name}={value:.4f}" for name, value in result.metrics.items()),
        )


def _read_marker(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None


def _write_marker(path: Path, version: int) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(str(version), encoding="ascii")
    os.replace(partial, path)


def _has_evaluation(lines: Path, version: int) -> bool:
    if not lines.is_file():
        return False
    with lines.open("rb") as file:
        return any(f'"policy_version":{version},'.encode() in line for line in file)
