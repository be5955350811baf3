"""benchmarks/objectives.py keeps finished runs, and only those; the runs themselves are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import objectives
from benchmarks.objectives import OBJECTIVES, PERIODS, Cell, Outcome, measure
from tbactl.config.loading import load_recipe

CELL = Cell(objective="rloo", period=4, seed=0)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that were run. Every one ends well, with the accuracy 0.5."""
    cells: list[Cell] = []

    def run(cell: Cell, *, results: Path, steps: int) -> Outcome:
        cells.append(cell)
        return outcome(steps=steps, before=0.25, after=0.5, interval=(0.4, 0.6))

    monkeypatch.setattr(objectives, "run", run)
    return cells


def outcome(*, steps: int = 8, **values: Any) -> Outcome:
    return Outcome(objective=CELL.objective, period=CELL.period, seed=CELL.seed, steps=steps, **values)


def test_finished_run_is_kept_and_not_repeated(tmp_path: Path, tried: list[Cell]) -> None:
    for _ in range(2):
        (found,) = measure([CELL], results=tmp_path, steps=8)
        assert found.after == 0.5
    assert tried == [CELL]


def test_failed_run_is_tried_again(tmp_path: Path, tried: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(objectives, "run", lambda cell, **_: outcome(problem="exit code 5: no memory"))
        (failed,) = measure([CELL], results=tmp_path, steps=8)
    assert failed.problem
    (found,) = measure([CELL], results=tmp_path, steps=8)
    assert tried == [CELL]
    assert not found.problem


def test_run_with_other_settings_is_not_mixed_in(
    tmp_path: Path, tried: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    list(measure([CELL], results=tmp_path, steps=8))
    with pytest.raises(SystemExit, match=r"other settings \(trainer\.max_steps\): choose another directory"):
        list(measure([CELL], results=tmp_path, steps=9))
    monkeypatch.setitem(objectives.SHARED, "trainer.learning_rate", 5e-4)
    monkeypatch.setitem(objectives.OWN, "rloo", {"objective.beta": 0.5})
    with pytest.raises(SystemExit, match=r"\(objective\.beta, trainer\.learning_rate\)"):
        list(measure([CELL], results=tmp_path, steps=8))
    assert tried == [CELL]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_settings_of_every_objective_are_accepted_without_warning(objective: str) -> None:
    for period in PERIODS:
        settings = Cell(objective=objective, period=period, seed=0).settings(steps=32)
        overrides = [f"{name}={objectives._toml(value)}" for name, value in settings.items()]
        assert load_recipe("gsm8k", profile="cpu", overrides=overrides).warnings == ()
