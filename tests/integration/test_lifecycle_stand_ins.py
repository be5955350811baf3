"""The supervisor with stand-in children: real processes, signals and shared memory, no engine and no learner."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tbactl.chaos.small_disk import fill, small_disk
from tbactl.config.sections import RunConfig
from tbactl.dashboard.state import PageSnapshot
from tbactl.errors import ConfigError
from tbactl.ipc.control_page import ProcessState
from tbactl.supervision import supervisor
from tbactl.supervision.identity import processes_with
from tbactl.supervision.placement import RUN_VARIABLE
from tbactl.supervision.shutdown import LEAVE_S, POLL_S, TERMINATE_S
from tbactl.supervision.signals import DEBOUNCE_S
from tbactl.supervision.stop import request_stop
from tests.support.full_pipe import full_pipe
from tests.support.supervise import stand_in_argv
from tests.support.supervised_run import END_S, stand_in_config, supervised_run

FOREVER = {"max_steps": 10_000_000}
# It is not over before the test says so: until then nothing depends on who is how fast.
HELD = {"options": {"hold_at": 20}}
# Longer than a process that is well may get no core for.
LIMIT_S = 4.0
# For what the supervisor does at its next look: a signal reaches it in one turn, and has its effect in another.
AT_ONCE_TURNS = 5
# Of a supervisor that gets a core whenever it wants one, in twice the time that a child which is done has for leaving.
MOST_LEAVING_TURNS = round(2 * LEAVE_S / POLL_S)
STUBBORN = {"ignore_stop": True, "ignore_sigterm": True}


def names(events: Iterable[dict]) -> set[str]:
    return {event["process"] for event in events}


def test_run_finishes_by_itself_and_leaves_files_but_nothing_else(tmp_path: Path):
    with supervised_run(tmp_path, evaluation={"num_prompts": 100, "target": 0.5}) as run:
        assert run.wait() == 0
        run.assert_nothing_left()
        assert run.record.outcome == "finished" and run.record.steps == 40 and run.record.training_s > 0
        assert json.loads(run.layout.resolved_config.read_text())["name"] == "t"
        assert "numpy" in json.loads(run.layout.environment.read_text())["packages"]
        assert {p.name for p in (run.layout.logs / "latest").iterdir()} == {
            "trainer-0.log", "searcher-0.log", "searcher-1.log",
        }  # fmt: skip
        assert "before     accuracy 0.200 [0.100, 0.300] (policy version 0, n = 100)" in run.text
        assert "after      accuracy 0.600" in run.text and "+40.0 points" in run.text
        assert "0.5 reached at step 40" in run.text
        summary = json.loads(run.layout.summary.read_text())
        assert summary["target_reached"]["policy_version"] == 40 and summary["before"]["value"] == 0.2


def test_segments_and_files_are_private_to_the_user_while_the_run_lives(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as run:
        run.wait_until_training()
        directory = run.record.shm_directory
        assert directory.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o077 == 0 for path in directory.iterdir())


@pytest.mark.fault("I-01")
def test_killed_searcher_is_noticed_within_two_seconds_and_restarted_and_the_run_completes(tmp_path: Path):
    with supervised_run(tmp_path, trainer=HELD) as run:
        run.wait_until_training()
        slot = run.page().searcher(1)
        num_before = run.wait_for(lambda: slot.get("num_completions"))
        event = run.kill_and_see("searcher-1")
        assert event["process"] == "searcher-1" and event["details"]["how"] == "killed by SIGKILL"
        run.wait_for_event("child_started", attempt=2)
        assert slot.get("attempt") == 2 and slot.get("num_completions") >= num_before > 0
        run.go_on()
        assert run.wait() == 0
        assert run.record.outcome == "finished"
        run.assert_nothing_left()


@pytest.mark.fault("I-01")
def test_searcher_that_dies_again_and_again_ends_the_run_and_is_named(tmp_path: Path):
    options = {"exit_after": 3, "exit_code": 9, "only": 1}
    with supervised_run(
        tmp_path, trainer=FOREVER, searchers={"engine_options": options}, supervision={"max_restarts": 2}
    ) as run:
        assert run.wait() == 5
        assert len(run.events("child_restarting")) == 2
        assert "error: searcher-1 (pid " in run.text and "exit code 9" in run.text and "| out of luck" in run.text
        assert run.record.outcome == "failed" and "out of luck" in run.record.message
        # The trainer was well: it wrote its checkpoint before the end.
        assert run.layout.latest_checkpoint.resolve().name.startswith("step_")
        run.assert_nothing_left()


def test_trainer_that_dies_ends_the_run_with_the_last_lines_of_its_log(tmp_path: Path):
    with supervised_run(tmp_path, trainer={"options": {"exit_after": 5, "exit_code": 1}}) as run:
        assert run.wait() == 5
        assert "error: trainer-0 (pid " in run.text and "exit code 1" in run.text and "| out of luck" in run.text
        run.assert_nothing_left()


def test_killed_trainer_is_named_with_its_signal(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as run:
        run.wait_until_training()
        run.wait_for(lambda: run.page().searcher(1).get("num_completions"))
        killed_s = time.monotonic()
        os.kill(run.pid("trainer-0"), signal.SIGKILL)
        assert run.wait() == 5
        assert "killed by SIGKILL" in run.text
        assert re.search(r"trainer-0 \(pid \d+\): RUNNING, has ended, last heartbeat \d+\.\d s ago", run.text)
        assert re.search(r"searcher-1 \(pid \d+\): RUNNING, last heartbeat", run.text) and "ring-1: 0% full" in run.text
        (failing,) = run.events("run_failing")
        signs = failing["details"]["processes"]
        assert [sign["is_alive"] for sign in signs] == [False, True, True]
        # Each of them was heard of shortly before the kill, or later.
        assert all(0.0 <= sign["heartbeat_s"] <= time.monotonic() - killed_s + 2.0 for sign in signs)
        assert [ring["num_written"] for ring in failing["details"]["rings"]] == [0, 0]
        assert re.search(r"in search$", (run.layout.logs / "latest" / "searcher-1.log").read_text(), re.MULTILINE)
        run.assert_nothing_left()


@pytest.mark.slow
def test_trainer_that_has_failed_but_cannot_leave_ends_the_run(tmp_path: Path):
    with supervised_run(tmp_path, trainer={"options": {"fail_after": 5}}) as run:
        assert run.wait() == 5
        assert "error: trainer-0 (pid " in run.text and "it has said FAILED" in run.text
        run.assert_nothing_left()


@pytest.mark.parametrize("section", ["trainer", "searchers"])
def test_child_that_reports_the_users_mistake_while_loading_ends_the_run_with_its_code(tmp_path: Path, section: str):
    options = {"exit_while_loading": 3}
    sections = {"trainer": {"options": options}} if section == "trainer" else {"searchers": {"engine_options": options}}
    with supervised_run(tmp_path, **sections) as run:
        assert run.wait() == 3
        # No restart would help; and no escape sequence of its log reaches the terminal.
        assert run.events("child_restarting") == []
        assert "cannot load" in run.text and "\x1b" not in run.text
        run.assert_nothing_left()


def test_searcher_that_dies_once_while_loading_is_restarted(tmp_path: Path):
    options = {"exit_while_loading": 1, "once": True}
    with supervised_run(tmp_path, searchers={"engine_options": options}) as run:
        assert run.wait() == 0
        assert len(run.events("child_restarting")) == 2
        run.assert_nothing_left()


@pytest.mark.fault("I-15")
def test_child_that_never_gets_ready_is_ended_at_the_start_limit(tmp_path: Path):
    supervision = {"start_timeout_s": 1.0, "max_restarts": 0}
    with supervised_run(
        tmp_path, searchers={"engine_options": {"load_seconds": 60, "only": 0}}, supervision=supervision
    ) as run:
        assert run.wait() == 5
        (died,) = run.events("child_died")
        assert died["details"]["how"].startswith("ended by the supervisor: not ready after ")
        assert f"error: {died['process']} (pid " in run.text and "(supervision.start_timeout_s = 1)" in run.text
        # On a busy machine another one may not be ready either.
        signs = {sign["process"]: sign["state"] for sign in run.events("run_failing")[0]["details"]["processes"]}
        late = {name for name, state in signs.items() if state in ("SPAWNED", "LOADING")}
        assert {"searcher-0", died["process"]} <= late
        run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.fault("I-16")
def test_stopped_searcher_misses_its_heartbeat_and_is_replaced(tmp_path: Path):
    with supervised_run(tmp_path, trainer=HELD, supervision={"heartbeat_timeout_s": LIMIT_S}) as run:
        run.wait_until_training()
        victim = run.pid("searcher-0")
        os.kill(victim, signal.SIGSTOP)
        event = run.wait_for_event("child_stalled", pid=victim)
        assert "no heartbeat for" in event["details"]["reason"]
        run.wait_for_event("child_started", attempt=2)
        run.go_on()
        assert run.wait() == 0
        run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.fault("I-16")
def test_stopped_trainer_misses_its_heartbeat_and_ends_the_run(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER, supervision={"heartbeat_timeout_s": LIMIT_S}) as run:
        run.wait_until_training()
        os.kill(run.pid("trainer-0"), signal.SIGSTOP)
        assert run.wait() == 5
        assert "trainer-0" in run.text and "no heartbeat for" in run.text
        sign = run.events("run_failing")[0]["details"]["processes"][0]
        assert sign["heartbeat_s"] > LIMIT_S, "as it was before it was made to go on"
        assert re.search(r"in train$", run.text, re.MULTILINE), "it has to write its stack although it was stopped"
        run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.fault("I-11", "I-16")
def test_searcher_whose_loop_hangs_leaves_its_stacks_in_its_log_and_is_replaced(tmp_path: Path):
    options = {"hang_after": 10, "once": True, "only": 0}
    with supervised_run(
        tmp_path,
        trainer=HELD,
        searchers={"engine_options": options},
        supervision={"progress_timeout_s": LIMIT_S},
    ) as run:
        run.wait_for_event("child_started", attempt=2)
        run.go_on()
        assert run.wait() == 0
        assert "main loop has not moved" in run.events("child_stalled")[0]["details"]["reason"]
        assert re.search(r"in turn$", (run.layout.logs / "latest" / "searcher-0.log").read_text(), re.MULTILINE)
        run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.fault("I-02")
def test_searcher_that_never_loads_new_weights_is_replaced(tmp_path: Path):
    options = {"never_load": True, "once": True, "only": 1}
    with supervised_run(
        tmp_path,
        trainer=HELD,
        searchers={"engine_options": options},
        supervision={"acknowledge_timeout_s": LIMIT_S},
    ) as run:
        run.wait_for_event("child_started", attempt=2)
        run.go_on()
        assert run.wait() == 0
        (event,) = run.events("child_stalled")
        assert event["process"] == "searcher-1" and "has not loaded policy version" in event["details"]["reason"]
        run.assert_nothing_left()


def test_broken_view_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class BrokenView:
        def update(self) -> None:
            raise ValueError("cannot draw")

    monkeypatch.setattr(supervisor, "open_view", lambda *a, **k: contextlib.nullcontext(BrokenView()))
    config = stand_in_config(tmp_path, trainer={"max_steps": 5})
    options = {"recipe_name": "test", "profile": "cpu", "resume": None, "plain": True, "argv_for": stand_in_argv}
    assert supervisor.run_to_end(config, **options, shm_root=tmp_path) == 0
    events = [json.loads(line) for line in (tmp_path / "runs" / "latest" / "events.jsonl").read_text().splitlines()]
    failures = [event for event in events if event["kind"] == "view_failed"]
    assert [event["details"]["error"] for event in failures] == ["ValueError: cannot draw"]


def test_run_completes_though_nobody_reads_its_output(tmp_path: Path):
    with full_pipe() as (_, theirs, _), supervised_run(tmp_path, stdout=theirs, trainer=HELD) as run:
        run.wait_until_training()
        supervisor_slot = run.page().supervisor
        num_turns = supervisor_slot.get("progress_count")
        run.wait_for(lambda: supervisor_slot.get("progress_count") > num_turns + 5)
        run.go_on()
        assert run.wait() == 0
        assert run.record.outcome == "finished" and run.record.steps == 40
        assert run.layout.final_page.exists() and run.layout.summary.exists()
        run.assert_nothing_left()


@pytest.mark.fault("I-62")
def test_interrupt_is_obeyed_though_nobody_reads_the_output(tmp_path: Path):
    with full_pipe() as (_, theirs, _), supervised_run(tmp_path, stdout=theirs, trainer=FOREVER) as run:
        run.wait_until_training()
        asked_s = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert time.monotonic() - asked_s < 60.0
        assert run.record.outcome == "interrupted" and run.layout.summary.exists()
        run.assert_nothing_left()


@pytest.fixture
def in_process(tmp_path: Path) -> Callable[..., int]:
    """Runs a configuration in this process; returns the exit code."""
    options = {"recipe_name": "test", "profile": "cpu", "plain": True, "argv_for": stand_in_argv, "shm_root": tmp_path}

    def run(*, resume: Path | None = None, **sections: dict[str, Any]) -> int:
        return supervisor.run_to_end(stand_in_config(tmp_path, **sections), resume=resume, **options)

    return run


@pytest.mark.fault("I-62")
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_before_anything_is_started_is_obeyed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd, in_process, number: signal.Signals, exit_code: int
):
    def slow(config: RunConfig) -> Path:
        os.kill(os.getpid(), number)
        time.sleep(90.0)
        raise AssertionError

    monkeypatch.setattr("tbactl.supervision.run_directory.resolve_policy", slow)
    asked_s = time.monotonic()
    assert in_process() == exit_code
    assert time.monotonic() - asked_s < 60.0
    assert capfd.readouterr().err == f"stopped by {number.name} before anything was started.\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.fault("I-62")
def test_resume_that_is_interrupted_before_it_has_begun_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process
):
    def interrupted(machine: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(90.0)

    assert in_process(trainer={"max_steps": 5}) == 0
    root = (tmp_path / "runs" / "latest").resolve()
    run_json = root / "run.json"
    # As if another process had run it.
    run_json.write_text(json.dumps(json.loads(run_json.read_text()) | {"pid_start_ticks": 1}))
    before = run_json.read_text()
    with monkeypatch.context() as patch:
        patch.setattr("tbactl.supervision.run_directory.describe_environment", interrupted)
        assert in_process(resume=root, trainer={"max_steps": 10}) == 130
    assert run_json.read_text() == before
    assert in_process(resume=root, trainer={"max_steps": 10}) == 0
    assert json.loads(run_json.read_text())["attempt"] == 2


@pytest.mark.fault("I-61", "I-62")
def test_interrupt_ends_with_a_checkpoint_and_130_in_time(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as run:
        run.wait_until_training()
        asked_s = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert time.monotonic() - asked_s < 60.0, "stop_grace_s, 120, must not be waited for"
        assert run.record.outcome == "interrupted"
        assert run.layout.latest_checkpoint.resolve().is_dir()
        run.assert_nothing_left()


@pytest.mark.fault("I-61")
def test_terminate_ends_with_a_checkpoint_and_143(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as run:
        run.wait_until_training()
        run.signal(signal.SIGTERM)
        assert run.wait() == 143
        assert run.record.outcome == "terminated"
        assert run.layout.latest_checkpoint.resolve().is_dir()
        run.assert_nothing_left()


def test_trainer_that_fails_to_save_after_an_interrupt_is_not_passed_over(tmp_path: Path):
    with supervised_run(tmp_path, trainer={**FOREVER, "options": {"exit_while_saving": 6}}) as run:
        run.wait_until_training()
        run.signal(signal.SIGINT)
        assert run.wait() == 6
        assert "error: trainer-0 (pid " in run.text and "| no room for the checkpoint" in run.text
        assert run.record.outcome == "failed" and "exit code 6" in run.record.message
        run.assert_nothing_left()


def test_interrupt_while_loading_ends_at_once(tmp_path: Path):
    with supervised_run(tmp_path, searchers={"engine_options": {"load_seconds": 600}}) as run:
        run.wait_for(lambda: len(run.events("child_started")) == 3)
        searchers = [run.page().searcher(index) for index in range(2)]
        run.wait_for(lambda: all(slot.get("state") == ProcessState.LOADING for slot in searchers))
        asked_s = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert time.monotonic() - asked_s < 60.0, "neither the loading, 600 s, nor stop_grace_s, 120, is waited for"
        assert [event["details"]["state"] for event in run.events("run_state")] == ["STOPPING"]
        run.assert_nothing_left()


@pytest.mark.fault("I-09")
def test_children_that_ignore_everything_are_killed_after_the_grace_time(tmp_path: Path):
    with supervised_run(
        tmp_path, trainer={**FOREVER, "options": STUBBORN}, searchers={"engine_options": STUBBORN},
        supervision={"stop_grace_s": 3.0},
    ) as run:  # fmt: skip
        run.wait_until_training()
        num_turns = run.page().supervisor.get("progress_count")
        asked_s = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert time.monotonic() - asked_s > 2.5
        # 3 s are 60 turns at most: fewer where the supervisor gets no core, never as many as in the 12 s of a default.
        num_turns = PageSnapshot.from_json(run.layout.final_page.read_text()).supervisor["progress_count"] - num_turns
        assert num_turns < 150
        assert len(run.events("child_killed")) == 3
        assert (
            "warning: the trainer was still at work" in run.text and "may end without its last checkpoint" in run.text
        )
        assert "without its last checkpoint" in run.record.message
        run.assert_nothing_left()


@pytest.mark.fault("I-09")
def test_child_that_is_done_but_slow_to_leave_is_not_waited_for(tmp_path: Path):
    with supervised_run(
        tmp_path, trainer=HELD, searchers={"engine_options": {"leave_seconds": 600}},
        supervision={"stop_grace_s": 600.0},
    ) as run:  # fmt: skip
        run.wait_until_training()
        page = run.page()
        slots = [page.searcher(index) for index in range(2)]
        run.go_on()
        run.wait_for(lambda: all(slot.get("state") == ProcessState.STOPPED for slot in slots))
        run.wait_turns(lambda: run.events("child_terminated"), supervisor=page.supervisor, limit=MOST_LEAVING_TURNS)
        assert run.wait() == 0
        asked_s = {event["process"]: event["elapsed_s"] for event in run.events("child_terminated")}
        assert {"searcher-0", "searcher-1"} <= asked_s.keys()
        # None on a quiet machine. One that gets no core cannot follow, but not both.
        killed = run.events("child_killed")
        assert names(killed) < {"searcher-0", "searcher-1"}, "SIGTERM must be enough"
        assert all(event["elapsed_s"] - asked_s[event["process"]] > TERMINATE_S - 0.1 for event in killed)
        run.assert_nothing_left()


@pytest.mark.fault("I-61", "I-62")
def test_second_interrupt_kills_at_once(tmp_path: Path):
    with supervised_run(
        tmp_path, trainer={**FOREVER, "options": STUBBORN}, searchers={"engine_options": STUBBORN},
        supervision={"stop_grace_s": 600.0},
    ) as run:  # fmt: skip
        run.wait_until_training()
        run.signal(signal.SIGINT)
        run.wait_for_event("stop_requested")
        time.sleep(DEBOUNCE_S + 0.1)
        assert run.process.poll() is None
        supervisor = run.page().supervisor
        run.signal(signal.SIGINT)
        everybody = {"trainer-0", "searcher-0", "searcher-1"}
        run.wait_turns(
            lambda: names(run.events("child_killed")) == everybody, supervisor=supervisor, limit=AT_ONCE_TURNS
        )
        assert run.wait() == 130, "stop_grace_s is longer"
        run.assert_nothing_left()


@pytest.mark.fault("I-09")
def test_searcher_that_ignores_the_end_of_a_finished_run_does_not_change_its_outcome(tmp_path: Path):
    supervision = {"stop_grace_s": 3.0}
    with supervised_run(tmp_path, searchers={"engine_options": STUBBORN}, supervision=supervision) as run:
        assert run.wait() == 0
        assert run.record.outcome == "finished"
        run.assert_nothing_left()


def test_stop_request_ends_with_a_checkpoint_and_0(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as run:
        run.wait_until_training()
        assert request_stop(run.layout.root, timeout_s=END_S) == 0
        assert run.record.outcome == "stopped"
        assert run.wait() == 0
        assert run.layout.latest_checkpoint.resolve().is_dir()
        run.assert_nothing_left()
        with pytest.raises(ConfigError, match="nothing to stop"):
            request_stop(run.layout.root, timeout_s=1.0)


@pytest.mark.fault("I-63")
def test_killed_supervisor_leaves_no_process_and_the_next_start_reclaims_its_segments(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as first:
        first.wait_until_training()
        directory = first.record.shm_directory
        first.process.kill()
        first.process.wait(timeout=60)
        first.wait_for(lambda: not list(processes_with(RUN_VARIABLE, str(directory))))
        assert directory.exists()
        with pytest.raises(ConfigError, match="was killed"):
            request_stop(first.layout.root, timeout_s=1.0)
    with supervised_run(tmp_path) as second:
        assert second.wait() == 0
        assert second.events("reclaimed")[0]["details"]["directory"] == str(directory)
        second.assert_nothing_left()


@pytest.mark.fault("I-63")
def test_a_second_run_leaves_a_live_one_alone(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as first:
        first.wait_until_training()
        record, layout = first.record, first.layout
        with supervised_run(tmp_path) as second:
            assert second.wait() == 0
            assert second.events("reclaimed") == []
        assert record.shm_directory.is_dir() and first.process.poll() is None
        assert request_stop(layout.root, timeout_s=END_S) == 0
        assert first.wait() == 0


@pytest.mark.fault("I-61")
def test_process_that_left_its_group_ends_with_the_run(tmp_path: Path):
    with supervised_run(tmp_path, trainer=FOREVER) as run:
        run.wait_until_training()
        environment = {**os.environ, RUN_VARIABLE: str(run.record.shm_directory)}
        stray = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], env=environment, start_new_session=True
        )
        try:
            run.signal(signal.SIGINT)
            assert run.wait() == 130
            assert stray.wait(timeout=60.0) == -signal.SIGKILL
        finally:
            stray.kill()
            stray.wait(timeout=60.0)


@pytest.mark.slow
@pytest.mark.fault("I-16")
def test_run_that_stands_still_ends_and_says_when_each_process_was_heard_of(tmp_path: Path):
    with supervised_run(
        tmp_path,
        searchers={"engine_options": {"idle_after": 3}},
        trainer={"options": {"idle_after": 3}},
        # Shorter: each of them goes on saying that it moves.
        supervision={"progress_timeout_s": 2.0},
    ) as run:
        assert run.wait() == 5
        assert "the run stands still" in run.text
        assert re.search(r"searcher-1 \(pid \d+\): RUNNING, last heartbeat \d", run.text)
        signs = run.events("run_failing")[0]["details"]["processes"]
        assert all(sign["is_alive"] and sign["heartbeat_s"] < LIMIT_S for sign in signs), "each of them is well"
        run.assert_nothing_left()


def test_run_on_a_disk_that_fills_up_writes_its_last_words_all_the_same(tmp_path: Path):
    runs = tmp_path / "runs"
    runs.mkdir()
    with small_disk(runs) as is_mounted:
        if not is_mounted:
            pytest.skip("needs to mount a file system")
        with supervised_run(tmp_path, trainer=FOREVER) as run:
            run.wait_until_training()
            assert run.layout.reserve.stat().st_size > 0
            fill(runs)
            assert run.wait() == 5, run.text
            assert run.record.outcome == "failed" and "trainer-0" in run.record.message
            assert run.events("run_ended") and run.layout.final_page.exists() and run.layout.summary.exists()
            assert not run.layout.reserve.exists()
            run.assert_nothing_left()


@pytest.mark.fault("I-08")
def test_missing_final_evaluation_is_said_and_does_not_fail_the_run(tmp_path: Path):
    with supervised_run(
        tmp_path,
        searchers={"engine_options": {"never_evaluate": True}},
        evaluation={"num_prompts": 10},
        supervision={"evaluation_timeout_s": 0.5},
    ) as run:
        assert run.wait() == 0
        assert "after      not measured: the evaluation of policy version 40" in run.text
        run.assert_nothing_left()


def test_resumed_run_continues_in_the_same_directory_with_its_own_logs(tmp_path: Path):
    with supervised_run(tmp_path, trainer=HELD) as first:
        first.wait_until_training()
        first.signal(signal.SIGINT)
        assert first.wait() == 130
        step = int(first.layout.latest_checkpoint.resolve().name.removeprefix("step_"))
        root = first.layout.root
    with supervised_run(tmp_path, resume=root) as second:
        assert second.wait() == 0
        assert second.layout.root == root and second.record.attempt == 2
        assert (root / "logs" / "latest").resolve().name == "attempt_002"
        assert second.events("resumed")[0]["details"]["checkpoint"].endswith(f"step_{step:06d}")
        steps = [json.loads(line)["step"] for line in second.layout.metrics.read_text().splitlines()]
        assert steps == list(range(1, 41))
        second.assert_nothing_left()


def test_second_supervisor_is_refused_until_the_first_is_gone_although_its_process_cannot_be_seen(tmp_path: Path):
    with supervised_run(tmp_path, trainer=HELD) as first:
        first.wait_until_training()
        first.signal(signal.SIGINT)
        assert first.wait() == 130
        root = first.layout.root
    with supervised_run(tmp_path, trainer=FOREVER, resume=root) as second:
        second.wait_for(lambda: [e["details"]["state"] for e in second.events("run_state")].count("RUNNING") == 2)
        # From another container the process of run.json cannot be seen.
        record = second.record.model_copy(update={"pid_start_ticks": 1})
        second.layout.identity.write_text(record.model_dump_json())
        with supervised_run(tmp_path, resume=root) as third:
            assert third.wait() == ConfigError.exit_code
            assert f"error: {root} is still running" in third.text
            assert f"pid {second.process.pid} on" in third.text and f"tbactl stop {root}" in third.text
        assert second.process.poll() is None
        assert not (root / "logs" / "attempt_003").exists()
        second.signal(signal.SIGKILL)
        second.wait()
    with supervised_run(tmp_path, resume=root) as last:
        assert last.wait() == 0, last.text
        assert last.record.attempt == 3
        last.assert_nothing_left()


@pytest.mark.fault("I-53")
def test_resume_without_a_checkpoint_is_refused(tmp_path: Path):
    with supervised_run(tmp_path, trainer={"options": {"exit_after": 3}}) as first:
        assert first.wait() == 5
        root = first.layout.root
    with supervised_run(tmp_path, resume=root) as second:
        assert second.wait() == 7
        assert "no complete checkpoint" in second.text


@pytest.mark.fault("I-66")
def test_two_ranks_and_four_searchers_start_together_on_different_ports(tmp_path: Path):
    with supervised_run(tmp_path, trainer={"num_ranks": 2}, searchers={"num_searchers": 4}) as run:
        assert run.wait() == 0
        assert len(run.events("child_started")) == 6
        run.assert_nothing_left()
