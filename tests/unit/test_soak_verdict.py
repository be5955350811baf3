"""The soak's verdicts on series whose growth is known, and its figures."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak import report
from benchmarks.soak_sampling import Sample, total_bytes
from benchmarks.soak_verdict import MIN_SAMPLES, Verdict, verdicts

PIDS = {"supervisor": 1, "trainer-0": 2, "searcher-0": 3}


def samples_of(rss: Callable[[int], float], *, count: int = 60, threads: Callable[[int], float] = lambda _: 3.0):
    rng = np.random.default_rng(0)
    return [
        Sample(
            seconds=10.0 * number,
            step=number,
            pids=dict(PIDS),
            values={
                "rss trainer-0": rss(number) + rng.normal(0, 0.3),
                "threads trainer-0": threads(number),
                "shared memory": 4.0,
                "history": 0.5 * number,
            },
        )
        for number in range(count)
    ]


def verdict_of(samples: list[Sample], quantity: str) -> Verdict:
    return next(verdict for verdict in verdicts(samples) if verdict.quantity == quantity)


def test_verdict_noise_and_peaks_are_flat():
    samples = samples_of(lambda number: 200.0 + (30.0 if number % 7 == 0 else 0.0))
    assert {verdict.word for verdict in verdicts(samples)} == {"flat", "by design"}


def test_verdict_steady_growth_is_found_with_its_size():
    found = verdict_of(samples_of(lambda number: 200.0 + 0.5 * number), "rss trainer-0")
    assert found.word == "growing"
    assert found.low < found.growth < found.high and found.growth == pytest.approx(0.5 * 44, rel=0.05)


def test_verdict_growth_that_ends_with_the_warm_up_is_flat():
    assert verdict_of(samples_of(lambda number: 200.0 + 10 * min(number, 14)), "rss trainer-0").word == "flat"


def test_verdict_one_thread_more_each_minute_is_growing():
    samples = samples_of(lambda _: 200.0, threads=lambda number: 3.0 + number // 6)
    assert verdict_of(samples, "threads trainer-0").word == "growing"


def test_verdict_history_may_grow():
    assert verdict_of(samples_of(lambda _: 200.0), "history").word == "by design"


def test_verdicts_few_samples_are_refused():
    with pytest.raises(ValueError, match="run longer"):
        verdicts(samples_of(lambda _: 200.0, count=MIN_SAMPLES))


@pytest.mark.parametrize(("growth", "exit_code"), [(0.0, 0), (1.0, 1)])
def test_report_writes_table_rows_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture, growth: float, exit_code):
    samples = samples_of(lambda number: 200.0 + growth * number)
    assert report(samples, results=tmp_path, problem="") == exit_code
    with (tmp_path / "soak.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60 and float(rows[7]["shared memory"]) == 4.0
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    assert ("GROWING: rss trainer-0" in capsys.readouterr().out) == bool(exit_code)
    assert "metrics.jsonl" in (tmp_path / "soak.md").read_text()


def test_report_run_that_failed_or_lost_a_process_is_no_success(tmp_path: Path):
    samples = samples_of(lambda _: 200.0)
    assert report(samples, results=tmp_path, problem="exit code 5: died") == 1
    samples[-1].pids["trainer-0"] = 99
    assert report(samples, results=tmp_path, problem="") == 1


def test_total_bytes_follows_no_links(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"12345")
    (tmp_path / "latest").symlink_to("a")
    assert total_bytes(tmp_path) == 5 and total_bytes(tmp_path / "missing") == 0
