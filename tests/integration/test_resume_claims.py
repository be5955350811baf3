"""Kill -9 on real runs, resumed: bit-exact in mode sync, and no prompt lost or done twice in mode async."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.bit_exact_resume import FAKES, check, draw_points
from tbactl.chaos.books import Mark, read_trace
from tbactl.chaos.case import Case
from tbactl.chaos.faults import NUM_SEARCHERS, Fault
from tbactl.chaos.settings import CaseLayout
from tbactl.testing.fake_task import FakeTask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Trace = Sequence[tuple[Mark, int]]


@pytest.mark.fault("I-49", "I-50", "I-56", "I-58", "I-59", "R-10")
def test_killed_trainer_and_supervisor_resume_bit_for_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    points = draw_points(replace(FAKES, num_steps=12), range(2), seed=1)
    # Many checkpoints come after the points: one of them is seen while it is written, however late the look.
    short = replace(FAKES, num_steps=24)
    assert [(point.victim, point.in_checkpoint) for point in points] == [("trainer-0", True), ("supervisor", True)]
    assert check(short, points, directory=tmp_path), capsys.readouterr().out
    assert capsys.readouterr().out.count(": identical") == 2


def prompts_of(seed: int) -> list[list[int]]:
    """Each searcher's prompts, in order."""
    prompts = [prompt.prompt_id for prompt in islice(FakeTask().prompts("train", seed=seed), 1000)]
    return [prompts[searcher::NUM_SEARCHERS] for searcher in range(NUM_SEARCHERS)]


def without_gap(prompts: Sequence[int], admitted: set[int]) -> set[int]:
    """The prompts up to the first that has not arrived: all that are not claims in flight."""
    first = next((i for i, prompt in enumerate(prompts) if prompt not in admitted), len(prompts))
    return set(prompts[:first])


def history_until(trace: Trace, index: int) -> list[int]:
    """Prompts admitted in what the resume at `index` goes on from: all before the checkpoint's mark that it names."""
    step = trace[index][1]
    ends = [i for i, entry in enumerate(trace[:index]) if entry == (Mark.CHECKPOINT, step)]
    return [number for mark, number in trace[: ends[-1]] if mark is Mark.ADMITTED]


@pytest.mark.fault("I-50", "I-52")
@pytest.mark.parametrize("target", ["trainer-0", "supervisor"])
def test_async_resume_after_a_kill_loses_no_prompt_and_repeats_none_but_claims_in_flight(tmp_path: Path, target: str):
    (tmp_path / "shm").mkdir()
    fault = Fault(number=1, kind="kill", phase="running", target=target, at_step=8, seed=5)
    case = Case(
        fault, directory=tmp_path, shm_root=tmp_path / "shm", bound_s=120.0, may_mount=False,
        cancelled=threading.Event(), keeps=True,
    )  # fmt: skip
    verdict = case.run()
    assert verdict.is_right and verdict.is_resumed, verdict.problems
    trace = list(read_trace(CaseLayout(tmp_path / fault.name).trace("trainer-0")))
    [resumed] = [index for index, (mark, _) in enumerate(trace) if mark is Mark.RESUMED]
    before = history_until(trace, resumed)
    after = [number for mark, number in trace[resumed:] if mark is Mark.ADMITTED]
    assert len(before) == len(set(before)) > 0, "no prompt arrives twice in one life"
    assert len(after) == len(set(after)) > 0
    for prompts in prompts_of(fault.seed):
        done = without_gap(prompts, set(before))
        assert done and not done & set(after), "what had arrived is not done again"
        own = [prompt for prompt in prompts if prompt in set(before) | set(after)]
        missing = set(prompts[: prompts.index(own[-1])]) - set(own)
        # At most eight are open (twice searchers.max_concurrent_groups), and three more wait for rewards when another
        # is begun.
        assert len(missing) <= 12, "only what was in flight at the end is missing"
        assert len(set(before) & set(after) & set(prompts)) <= 12, "only claims in flight are done again"
