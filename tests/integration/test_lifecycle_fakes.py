"""The real searcher and trainer processes, with fake engine and learner, under the supervisor."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tbactl.config.layout import RunLayout
from tbactl.dashboard.state import PageSnapshot
from tbactl.supervision.identity import start_ticks
from tests.support.supervised_run import FAKE_SEARCHERS, SupervisedRun, supervised_run

# Slow enough to be disturbed, fast enough for a test: 12 steps of 0.2 s.
SECTIONS: dict[str, Any] = {
    "policy": {"path": "fake"},
    "searchers": FAKE_SEARCHERS,
    "trainer": {
        "kind": "fake", "max_steps": 12, "prompts_per_step": 4, "completions_per_prompt": 4,
        "options": {"step_seconds": 0.2},
    },
    "replay": {"initial_trajectories": 32},
    "objective": {"beta": 0.01},
    "sync": {"period": 2},
    "checkpoint": {"period": 4},
    "evaluation": {"num_prompts": 20},
    "logging": {"tensorboard": False},
    "supervision": {"restart_backoff_s": 0.1, "stop_grace_s": 120.0},
}  # fmt: skip

pytestmark = pytest.mark.slow


def real_run(tmp_path: Path, *, resume: Path | None = None, **changes: dict[str, Any]):
    sections = {name: {**section, **changes.get(name, {})} for name, section in SECTIONS.items()}
    return supervised_run(tmp_path, stand_ins=False, resume=resume, **sections)


def steps_of(layout: RunLayout) -> list[int]:
    return [json.loads(line)["step"] for line in layout.metrics.read_text().splitlines()]


def held(
    tmp_path: Path, *, at: int = 5, until: str = "go_on", step_seconds: float = 0.2, **trainer: Any
) -> dict[str, Any]:
    """A trainer that waits before an update for a file: what is to happen meanwhile happens on any machine."""
    fault = {"kind": "hang", "where": "update", "after": at, "until_file": str(tmp_path / until)}
    return {"options": {"step_seconds": step_seconds, "faults": [fault]}, **trainer}


@pytest.mark.fault("I-08", "I-64", "I-85")
def test_whole_pipeline_runs_to_its_end_and_evaluates_before_and_after(tmp_path: Path):
    with real_run(tmp_path, logging={"profile_trace": True}) as run:
        assert run.wait() == 0, run.text
        run.assert_nothing_left()
        assert steps_of(run.layout) == list(range(1, 13))
        versions = [event["details"]["policy_version"] for event in run.events("evaluation")]
        assert versions[0] == 0 and versions[-1] == 12
        assert run.layout.latest_checkpoint.resolve().name == "step_000012"
        assert run.events("alarm") == []
        logs = [log.read_text() for log in (run.layout.logs / "latest").iterdir()]
        assert len(logs) == 3 and not any(word in text for text in (run.text, *logs) for word in ("leaked", "tracker"))
        assert_trace_is_of_this_run(run.layout, limit_s=time.monotonic() - run.started_s)


def assert_trace_is_of_this_run(layout: RunLayout, *, limit_s: float) -> None:
    """All three processes are in it, within the time of the run, and what overlaps is nested."""
    events = json.loads(layout.trace.read_bytes())
    tracks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert tracks == {0: "trainer-0", 1: "searcher-0", 2: "searcher-1"}
    spans = [event for event in events if event["ph"] == "X"]
    names = {track: {span["name"] for span in spans if span["pid"] == track} for track in tracks}
    assert names[0] >= {"intake", "wait", "sample", "update", "publish", "checkpoint"}
    assert names[1] >= {"start_engine", "turns", "evaluate", "load_weights"}
    assert "idle" in names[1] | names[2], "the one that is ready first has nothing to do"
    assert len([span for span in spans if span["name"] == "update"]) == 12
    last = max(event["ts"] for event in events if event["ph"] == "i")
    assert all(last - span["ts"] - span["dur"] >= 0 and last - span["ts"] < limit_s * 1e6 for span in spans)
    for track in tracks:
        open_until = []
        for span in sorted((s for s in spans if s["pid"] == track), key=lambda s: (s["ts"], -s["dur"])):
            # Rounded to a tenth of a microsecond.
            while open_until and open_until[-1] <= span["ts"] + 0.2:
                open_until.pop()
            assert not open_until or span["ts"] + span["dur"] <= open_until[-1] + 0.2, span
            open_until.append(span["ts"] + span["dur"])


@pytest.mark.fault("R-07")
def test_killed_searcher_is_noticed_and_restarted_and_the_run_completes(tmp_path: Path):
    with real_run(tmp_path, trainer=held(tmp_path)) as run:
        run.wait_until_training()
        run.kill_and_see("searcher-0")
        (tmp_path / "go_on").touch()
        assert run.wait() == 0, run.text
        assert steps_of(run.layout) == list(range(1, 13))
        run.assert_nothing_left()


@pytest.mark.fault("I-01")
def test_both_searchers_killed_at_once_do_not_stop_the_run(tmp_path: Path):
    with real_run(tmp_path, trainer=held(tmp_path, max_steps=20)) as run:
        run.wait_until_training()
        for name in ("searcher-0", "searcher-1"):
            os.kill(run.pid(name), signal.SIGKILL)
        (tmp_path / "go_on").touch()
        assert run.wait() == 0, run.text
        assert steps_of(run.layout) == list(range(1, 21))
        run.assert_nothing_left()


@pytest.mark.fault("I-62")
def test_interrupt_checkpoints_and_exits_130_within_fifteen_seconds_and_resume_goes_on(tmp_path: Path):
    # No earlier checkpoint is under way; and what the disk takes for the last one is not counted.
    with real_run(tmp_path, trainer={"max_steps": 1000}, checkpoint={"period": 1000}) as run:
        run.wait_until_training()
        asked_s = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait() == 130, run.text
        taken_s = time.monotonic() - asked_s
        log = (run.layout.logs / "latest" / "trainer-0.log").read_text()
        (written_s,) = map(float, re.findall(r"checkpoint step=\d+ seconds=([\d.]+)", log))
        assert taken_s - written_s < 15.0
        run.assert_nothing_left()
        step = int(run.layout.latest_checkpoint.resolve().name.removeprefix("step_"))
        assert step == steps_of(run.layout)[-1] > 0
        root = run.layout.root
    changes = {"trainer": {"max_steps": step + 4}, "checkpoint": {"period": 1000}}
    with real_run(tmp_path, resume=root, **changes) as second:
        assert second.wait() == 0, second.text
        assert steps_of(second.layout) == list(range(1, step + 5))
        second.assert_nothing_left()


@pytest.mark.fault("I-61")
def test_killed_trainer_ends_the_run_and_is_named(tmp_path: Path):
    with real_run(tmp_path, trainer={"max_steps": 1000}) as run:
        run.wait_until_training()
        os.kill(run.pid("trainer-0"), signal.SIGKILL)
        assert run.wait() == 5
        assert "trainer-0" in run.text and "killed by SIGKILL" in run.text
        run.assert_nothing_left()


@pytest.mark.fault("I-61")
def test_killed_supervisor_leaves_no_process_behind(tmp_path: Path):
    with real_run(tmp_path, trainer={"max_steps": 1000}) as run:
        run.wait_until_training()
        pids = [run.pid(name) for name in ("trainer-0", "searcher-0", "searcher-1")]
        run.process.kill()
        run.process.wait(timeout=60)
        run.wait_for(lambda: all(start_ticks(pid) is None for pid in pids))


def test_stopped_searcher_is_replaced(tmp_path: Path):
    supervision = {"heartbeat_timeout_s": 5.0}
    with real_run(tmp_path, trainer=held(tmp_path), supervision=supervision) as run:
        run.wait_until_training()
        os.kill(run.pid("searcher-1"), signal.SIGSTOP)
        run.wait_for_event("child_started", attempt=2)
        (tmp_path / "go_on").touch()
        assert run.wait() == 0, run.text
        assert "no heartbeat" in run.events("child_stalled")[0]["details"]["reason"]
        run.assert_nothing_left()


@pytest.mark.fault("I-18")
def test_engine_that_ignores_its_weights_sets_off_the_alarm(tmp_path: Path):
    searchers = {**SECTIONS["searchers"], "engine_options": {"ignore_weights": True}}
    with real_run(tmp_path, searchers=searchers) as run:
        assert run.wait() == 0, run.text
        assert run.events("alarm")
        run.assert_nothing_left()


@pytest.mark.fault("I-18")
def test_engine_that_goes_on_ignoring_its_weights_ends_the_run(tmp_path: Path):
    searchers = {**SECTIONS["searchers"], "engine_options": {"ignore_weights": True}}
    sync = {"period": 1, "stop_logprob_difference": 0.01, "stop_patience": 3}
    with real_run(tmp_path, searchers=searchers, sync=sync, trainer={"max_steps": 200}) as run:
        assert run.wait() == 5, run.text
        assert "for 3 policy versions in a row by more than 0.01" in run.text
        assert run.events("alarm") and steps_of(run.layout)[-1] < 100
        run.assert_nothing_left()


@pytest.mark.fault("I-03")
def test_engine_that_crashes_once_in_mid_run_is_replaced(tmp_path: Path):
    fault = {"kind": "raise", "where": "step", "after": 200, "once_file": str(tmp_path / "struck")}
    searchers = {**SECTIONS["searchers"], "engine_options": {"step_seconds": 0.002, "faults": [fault]}}
    with real_run(tmp_path, searchers=searchers, trainer=held(tmp_path, until="struck")) as run:
        assert run.wait() == 0, run.text
        assert (tmp_path / "struck").exists() and len(run.events("child_restarting")) == 1
        run.assert_nothing_left()


STARVED = "the engine has 16 open requests, and has finished none for"


def starving(tmp_path: Path, **fault: str):
    """A run whose only searcher has an engine that takes requests and finishes none: the buffer is never filled."""
    options = {"step_seconds": 0.002, "faults": [{"kind": "starve", **fault}]}
    return real_run(
        tmp_path,
        searchers={"num_searchers": 1, "engine_options": options},
        evaluation={"num_prompts": 0},
        supervision={"progress_timeout_s": 3.0, "max_restarts": 1},
    )


@pytest.mark.fault("I-16")
def test_engine_that_finishes_nothing_is_noticed_and_replaced(tmp_path: Path):
    with starving(tmp_path, once_file=str(tmp_path / "struck")) as run:
        assert run.wait() == 0, run.text
        assert len(run.events("child_restarting")) == 1
        log = (run.layout.logs / "latest" / "searcher-0.log").read_text()
        assert STARVED in log and re.search(r"in turn$", log, re.MULTILINE)
        run.assert_nothing_left()


@pytest.mark.fault("I-16")
def test_engine_that_finishes_nothing_in_any_life_ends_the_run(tmp_path: Path):
    with starving(tmp_path) as run:
        assert run.wait() == 5, run.text
        assert STARVED in run.text and "restarted 1 times before (supervision.max_restarts)" in run.text
        run.assert_nothing_left()


@pytest.mark.fault("I-03")
def test_learner_that_crashes_ends_the_run_with_its_last_lines(tmp_path: Path):
    fault = {"kind": "raise", "where": "update", "after": 3}
    with real_run(tmp_path, trainer={**SECTIONS["trainer"], "options": {"faults": [fault]}}) as run:
        assert run.wait() == 5
        assert "injected fault: raise at update after 3" in run.text
        run.assert_nothing_left()


def metric_of(run: SupervisedRun, name: str) -> list[float]:
    return [json.loads(line)["metrics"][name] for line in run.layout.metrics.read_text().splitlines()]


@pytest.mark.fault("I-17")
def test_trainer_faster_than_its_searchers_waits_for_new_data_at_the_upper_bound(tmp_path: Path):
    searchers = {"engine_options": {"step_seconds": 0.05}, "max_concurrent_groups": 1}
    replay = {"max_samples_per_insert": 3.0}
    trainer = {"max_steps": 24, "options": {"step_seconds": 0.0}}
    with real_run(tmp_path, searchers=searchers, replay=replay, trainer=trainer, evaluation={"num_prompts": 0}) as run:
        assert run.wait() == 0, run.text
        ratios = metric_of(run, "replay/samples_per_insert/value")
        assert len(ratios) == 24 and max(ratios) <= 3.0
        # The first six steps live on what the buffer was filled with. Later ones are all near the bound, but for those
        # before which it got no core while its searchers went on.
        assert sum(ratio > 2.5 for ratio in ratios[6:]) >= 6, "the bound must be what it waits for"
        assert sum(metric_of(run, "trainer/wait_s/sum")[6:]) > 0.5
        run.assert_nothing_left()


@pytest.mark.fault("I-17")
def test_searchers_faster_than_the_trainer_are_held_at_the_lower_bound(tmp_path: Path):
    searchers = {"ring_capacity_bytes": 16_384, "engine_options": {"step_seconds": 0.0}}
    replay = {"min_samples_per_insert": 2.0}
    trainer = held(tmp_path, at=10, step_seconds=0.1, max_steps=15)
    with real_run(tmp_path, searchers=searchers, replay=replay, trainer=trainer, evaluation={"num_prompts": 0}) as run:
        run.wait_until_training()
        slots = [run.page().searcher(index) for index in range(2)]
        run.wait_for(lambda: all(slot.get_float("f_ring_fill") > 0.9 for slot in slots))
        (tmp_path / "go_on").touch()
        assert run.wait() == 0, run.text
        received, trained = metric_of(run, "intake/trajectories/total"), metric_of(run, "trainer/trajectories/total")
        assert len(trained) == 15
        # What is taken in before a step, by what was trained on before it: a group of four more at most.
        allowed = [max(32, before / 2.0) + 4 for before in [0.0, *trained]]
        assert all(number <= limit for number, limit in zip(received, allowed, strict=False))
        assert received[-1] > received[0], "it goes on once the bound allows it"
        assert min(metric_of(run, "searcher/ring_fill/max")[-5:]) > 0.9, "full rings must hold the searchers"
        page = PageSnapshot.from_json(run.layout.final_page.read_text())
        num_unread = sum(s["num_groups_written"] for s in page.searchers) - page.trainers[0]["num_groups_received"]
        # Nothing dropped: what was written and not received lies in the rings, and fits there.
        assert 0 < num_unread < 2 * 16_384 / 300 and not any(s["num_failed"] for s in page.searchers)
        run.assert_nothing_left()
