"""The arithmetic of the speed benchmarks, and their workers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import ipc, memory, peer_environment, replay, short_run, start
from benchmarks.channel_ends import read_all, write_all
from benchmarks.ipc import sample_group
from benchmarks.measuring import Speeds, Worker, commit, differences, machine, ratios, shown_over, spread, target
from benchmarks.sync_pause import pause_share
from benchmarks.training_work import COMPLETION_TOKENS, KINDS, make_batch, num_completion_tokens
from tbactl.ipc.codec import encode

ECHO = """
import sys
from benchmarks.measuring import serve
print("noise that libraries make on standard output")
serve(lambda asked: {"twice": 2 * asked["number"]}, descriptor=int(sys.argv[1]))
"""


def test_spread_is_the_median_with_the_ends():
    assert spread([3.0, 1.0, 10.0]) == {"median": 3.0, "low": 1.0, "high": 10.0}


def test_ratios_are_taken_within_a_repetition_so_that_a_slow_machine_cancels_out():
    # Both twice as slow in the second repetition: a ratio of medians over three would be off.
    assert ratios([100.0, 50.0, 90.0], [50.0, 25.0, 45.0]) == {"median": 2.0, "low": 2.0, "high": 2.0}


def test_speeds_are_compared_by_both_clocks():
    speeds = Speeds(["ours", "theirs"])
    speeds.note("ours", {"tokens": 100, "seconds": 10.0, "cpu_seconds": 1.0})
    speeds.note("theirs", {"tokens": 50, "seconds": 2.5, "cpu_seconds": 1.0})
    compared = speeds.compared("ours")
    assert compared["tokens_per_s"]["theirs"]["median"] == 20.0
    assert shown_over(compared, "theirs") == ("0.50 (0.50 to 0.50)", "2.00 (2.00 to 2.00)")
    assert shown_over(compared, "ours") == ("", "")


def test_ratios_of_different_numbers_of_repetitions_are_refused():
    with pytest.raises(ValueError):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "bound", "is_met"),
    [(0.9, {"at_least": 0.9}, True), (0.89, {"at_least": 0.9}, False), (2.1, {"at_most": 2.0}, False)],
)
def test_target_is_met_on_its_side_of_the_bound(value, bound, is_met):
    assert target("x", value, **bound)["is_met"] is is_met


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1.0, "at_most": 2.0}])
def test_target_without_one_bound_is_refused(bounds):
    with pytest.raises(AssertionError):
        target("x", 1.0, **bounds)


def test_pause_share_counts_whole_periods_and_leaves_the_first_out():
    def step(step_s, publish_s):
        return {"step_s": step_s, "publish_s": publish_s}

    steps = [step(9.0, 0.0), step(9.0, 5.0), step(1.0, 0.0), step(1.0, 0.1), step(1.0, 0.0)]
    assert pause_share(steps, period=2) == pytest.approx(0.1 / 2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_for_all_contestants_and_as_long_as_they_say(kind):
    groups = make_batch(kind, num_groups=4, seed=3, first_uid=100)
    again = make_batch(kind, num_groups=4, seed=3, first_uid=100)
    assert groups == again
    uids = [trajectory.uid for group in groups for trajectory in group.trajectories]
    assert uids == list(range(100, 164))
    assert num_completion_tokens(groups) / len(uids) == pytest.approx(COMPLETION_TOKENS, rel=0.1)


def test_channel_loses_nothing_and_notices_when_it_does():
    sent: list[bytes] = []
    write_all(lambda payload: sent.append(payload) is None, count=5, size=64)
    received = iter(sent)
    read_all(lambda: next(received), count=5, size=64)
    missing = iter(sent[1:])
    with pytest.raises(AssertionError):
        read_all(lambda: next(missing), count=4, size=64)


def test_sample_group_is_of_the_size_that_the_table_says():
    assert 3500 < len(encode(sample_group())) < 4600


def test_worker_answers_what_it_is_asked_and_its_own_output_does_not_disturb(tmp_path, monkeypatch):
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    with Worker("echo_worker", [], threads=1) as worker:
        assert [worker.ask(number=number)["twice"] for number in (1, 21)] == [2, 42]


def test_worker_that_fails_ends_the_benchmark_with_its_words(tmp_path, monkeypatch):
    (tmp_path / "failing_worker.py").write_text("raise ValueError('out of luck')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    with Worker("failing_worker", [], threads=1) as worker, pytest.raises(SystemExit, match="out of luck"):
        worker.ask(number=1)


def on(load=0.5, *, torch="2.0", commit="abc"):
    versions = {"tbactl": "1", "torch": torch}
    return {"processor": "P", "cores": 2, "load_average": load, "versions": versions, "commit": commit}


@pytest.fixture
def runs(monkeypatch):
    """Numbers the short runs that are done, as their first step."""
    done = []

    def run(scratch):
        done.append(scratch)
        return {"start_s": {"first step done": 1.0}, "peak_mib": {"trainer-0": 5.0}, "steps": [{"step_s": len(done)}]}

    monkeypatch.setattr(short_run, "_run", run)
    monkeypatch.setattr(short_run, "machine", lambda *_: on())
    return done


def test_short_run_that_is_there_is_not_run_again(tmp_path, runs, monkeypatch):
    first = short_run.short_run(tmp_path)
    assert first["machine"] == on()
    monkeypatch.setattr(short_run, "machine", lambda *_: on(load=7.0))
    assert short_run.short_run(tmp_path) == first and len(runs) == 1


@pytest.mark.parametrize("here", [on(torch="2.1"), on(commit="def"), on(commit=None)])
def test_short_run_of_other_versions_or_another_commit_is_run_again(tmp_path, runs, monkeypatch, here):
    short_run.short_run(tmp_path)
    monkeypatch.setattr(short_run, "machine", lambda *_: here)
    again = short_run.short_run(tmp_path)
    assert again["machine"] == here and again["steps"] == [{"step_s": 2}]
    assert short_run.short_run(tmp_path) == again and len(runs) == 2


def test_short_run_that_does_not_say_where_it_was_measured_is_run_again(tmp_path, runs):
    (tmp_path / "short-run-0.json").write_text(json.dumps({"steps": []}))
    assert short_run.short_run(tmp_path)["steps"] == [{"step_s": 1}]


def test_reports_say_where_a_kept_run_was_measured(tmp_path, runs, monkeypatch, capsys):
    short_run.short_run(tmp_path)
    monkeypatch.setattr(short_run, "machine", lambda *_: on(load=7.0))
    monkeypatch.setattr(
        memory, "measure", lambda *_, **__: {"plain_over": {w: {"working": {"median": 9}} for w in memory.WAYS}}
    )
    monkeypatch.setattr(memory, "logprob_table", lambda _: "")
    for benchmark in (start, memory):
        monkeypatch.setattr(sys, "argv", ["", "--short", "--directory", str(tmp_path)])
        benchmark.main()
        assert (
            "short-run-0 was measured on: P, 2 cores, load 0.5; tbactl 1, torch 2.0, commit abc"
            in capsys.readouterr().out
        )
        written = json.loads((tmp_path / f"{benchmark.__name__.partition('.')[2]}.json").read_text())
        assert written["kept"] == {"short-run-0": on()}
    assert len(runs) == 1


def test_differences_of_machines_are_named_but_not_the_load():
    assert differences(on(), on(load=9.0)) == ""
    assert differences(on(), on(torch="2.1", commit=None)) == "commit abc (now none), torch 2.0 (now 2.1)"
    assert "tbactl" in differences({}, machine())


def test_commit_is_none_outside_a_repository_and_a_changed_tree_counts_as_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert commit(tmp_path) is None
    file = tmp_path / "file"
    file.write_text("one")
    for arguments in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)
    seen = [commit(tmp_path)]
    for text in ("two", "three", "one"):
        file.write_text(text)
        seen.append(commit(tmp_path))
    assert None not in seen and seen[0] == seen[3]
    assert len(set(seen)) == 3 and all(name.startswith(f"{seen[0]}-dirty-") for name in seen[1:3])


def test_peer_that_cannot_be_installed_is_left_out_with_a_line(tmp_path, monkeypatch, capsys):
    def run(command, **_):
        if "pip" in command:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(peer_environment, "ROOT", tmp_path)
    monkeypatch.setattr(peer_environment.subprocess, "run", run)
    names = list(ipc.contestants(has_peer=True))
    said = " ".join(capsys.readouterr().out.split())
    assert "iceoryx2 is left out: .venv-iceoryx2 could not be made (exit code 1 of `python -m pip install`" in said
    assert names == list(ipc.contestants(has_peer=False)) and len(names) == 4


def measured(size, *, choose=0.5, insert=0.4, factor=1.2):
    return {
        "shape": "one prompt",
        "num_trajectories": size,
        "memory": {"factor": factor, "raw_bytes": 1, "resident_bytes": 1},
        "insert_ms": {"8": {"p50": 0.1}, "20": {"p50": insert}},
        "draw_ms": {
            name: {part: {"p50": ms} for part in ("draw", "choose", "unpack")}
            for name, ms in (("recency", 0.1), ("residual", choose))
        },
        "snapshot_s": {"save": 1.0, "load": 1.0, "bytes": 1},
    }


@pytest.mark.parametrize(
    ("worse", "is_met"),
    [
        ({}, [True, True, True]),
        ({"choose": 1.1}, [False, True, True]),
        ({"insert": 1.1}, [True, False, True]),
        ({"factor": 1.4}, [True, True, False]),
    ],
)
def test_replay_judges_the_worst_shape_of_a_million_trajectories(worse, is_met):
    found = replay.targets(
        [measured(1_000_000), measured(1_000_000, **worse), measured(10_000, choose=9.0, factor=9.0)]
    )
    assert [each["is_met"] for each in found] == is_met
    assert replay.targets([measured(10_000)]) == []


@pytest.mark.parametrize(("size", "said"), [(1_000_000, "met"), (10_000, "No target is judged")])
def test_replay_reports_machine_and_targets(tmp_path, monkeypatch, capsys, size, said):
    monkeypatch.setattr(replay, "run", lambda *_: measured(size))
    monkeypatch.setattr(replay, "machine", lambda *_: on())
    file = tmp_path / "replay.json"
    monkeypatch.setattr(sys, "argv", ["", "--sizes", str(size), "--no-peer", "--results", str(file)])
    replay.main()
    printed = capsys.readouterr().out
    assert said in printed and "P, 2 cores, load 0.5; tbactl 1, torch 2.0, commit abc" in printed
    assert json.loads(file.read_text())["machine"] == on()
