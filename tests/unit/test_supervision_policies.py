"""Restart policy, watchdog and stop signals: pure, under a fake clock."""

import os
import signal

import pytest

from tbactl.clock import FakeClock
from tbactl.config.sections import SupervisionSection
from tbactl.ipc.control_page import SEARCHER_WORDS, TRAINER_WORDS, ProcessState, TrainerPhase
from tbactl.supervision.restart import MAX_BACKOFF_S, RestartPolicy
from tbactl.supervision.signals import DEBOUNCE_S, StoppedEarly, StopSignals
from tbactl.supervision.watchdog import complaint, is_anyone_busy, progress_of

BOUNDS = SupervisionSection(
    start_timeout_s=100, heartbeat_timeout_s=10, progress_timeout_s=50, evaluation_timeout_s=200
)


def judged(*, now_s: float, started_s: float = 0.0, **words: float) -> str | None:
    slot = dict.fromkeys(SEARCHER_WORDS, 0.0) | words
    return complaint(
        slot,
        now_ns=int(now_s * 1e9),
        started_ns=int(started_s * 1e9),
        supervision=BOUNDS,
    )


def test_backoff_doubles_for_each_searcher_until_the_limit():
    policy = RestartPolicy(SupervisionSection(max_restarts=3, restart_backoff_s=1.0))
    assert [policy.next_delay_s(0) for _ in range(4)] == [1.0, 2.0, 4.0, None]
    assert policy.next_delay_s(1) == 1.0
    assert policy.counts == {0: 3, 1: 1}


def test_backoff_has_an_upper_end():
    policy = RestartPolicy(SupervisionSection(max_restarts=20, restart_backoff_s=1.0))
    assert max(delay for _ in range(20) if (delay := policy.next_delay_s(0)) is not None) == MAX_BACKOFF_S


def test_loading_child_is_judged_by_the_start_limit_alone():
    assert judged(now_s=99, state=ProcessState.LOADING) is None
    assert "not ready after 101 s" in (judged(now_s=101, state=ProcessState.LOADING) or "")
    assert "not ready" in (judged(now_s=101, state=ProcessState.SPAWNED) or "")
    assert judged(now_s=150, started_s=60, state=ProcessState.LOADING) is None


def test_old_heartbeat_is_a_complaint_in_every_later_state():
    for state in (ProcessState.READY, ProcessState.RUNNING, ProcessState.DRAINING):
        beat = {"state": state, "progress_ns": 499e9}
        assert judged(now_s=500, heartbeat_ns=491e9, **beat) is None
        assert "no heartbeat for 11.0 s" in (judged(now_s=500, heartbeat_ns=489e9, **beat) or "")


def test_missing_progress_is_a_complaint_while_running_only():
    words = {"heartbeat_ns": 500e9, "progress_ns": 440e9}
    assert "has not moved for 60 s" in (judged(now_s=500, state=ProcessState.RUNNING, **words) or "")
    assert judged(now_s=500, state=ProcessState.READY, **words) is None


@pytest.mark.parametrize("state", [ProcessState.STOPPED, ProcessState.FAILED])
def test_child_that_is_done_must_leave(state: ProcessState):
    assert judged(now_s=500, state=state, progress_ns=491e9) is None, "its heartbeat has ended with its work"
    assert "has not left" in (judged(now_s=500, state=state, progress_ns=489e9, heartbeat_ns=500e9) or "")


def test_evaluating_searcher_gets_the_time_of_an_evaluation():
    words = {"state": ProcessState.RUNNING, "heartbeat_ns": 500e9, "evaluating": 1}
    assert judged(now_s=500, progress_ns=350e9, **words) is None
    assert judged(now_s=500, progress_ns=250e9, **words) is not None


@pytest.mark.parametrize("word", ["policy_version", "num_trajectories_received", "checkpoint_step"])
def test_run_position_changes_with_the_trainers_work(word: str):
    trainer, searcher = dict.fromkeys(TRAINER_WORDS, 0.0), dict.fromkeys(SEARCHER_WORDS, 0.0)
    assert progress_of(trainer, [searcher]) != progress_of(trainer | {word: 1.0}, [searcher])
    assert progress_of(trainer, [searcher]) == progress_of(trainer | {"heartbeat_ns": 1.0}, [searcher])


@pytest.mark.parametrize(
    ("phase", "words", "is_busy"),
    [
        (TrainerPhase.WAITING, {}, False),
        (TrainerPhase.FILLING, {"num_active_requests": 3}, True),
        (TrainerPhase.WAITING, {"evaluating": 1}, True),
        (TrainerPhase.TRAINING, {}, True),
        (TrainerPhase.CHECKPOINTING, {}, True),
    ],
)
def test_run_is_busy_while_anybody_computes(phase: TrainerPhase, words: dict[str, float], is_busy: bool):
    trainer, searcher = dict.fromkeys(TRAINER_WORDS, 0.0), dict.fromkeys(SEARCHER_WORDS, 0.0)
    assert is_anyone_busy(trainer | {"phase": phase}, [searcher, searcher | words]) == is_busy


@pytest.mark.parametrize(
    ("number", "outcome", "exit_code"),
    [
        (signal.SIGINT, "interrupted", 130),
        (signal.SIGTERM, "terminated", 143),
        (signal.SIGHUP, "terminated", 129),
        (signal.SIGUSR2, "stopped", 0),
    ],
)
def test_signal_becomes_a_request_with_its_exit_code(number: signal.Signals, outcome: str, exit_code: int):
    # Whoever started the tests may have had signals ignored (nohup).
    original = signal.signal(number, signal.SIG_DFL)
    try:
        check_request(number, outcome, exit_code)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, original)


def check_request(number: signal.Signals, outcome: str, exit_code: int) -> None:
    with StopSignals(clock=FakeClock()) as signals:
        assert signals.request is None
        os.kill(os.getpid(), number)
        assert signals.request is not None
        assert (signals.request.outcome, signals.request.exit_code) == (outcome, exit_code)
        assert not signals.hurry


def test_second_interrupt_hurries_unless_it_is_an_echo_of_the_first():
    clock = FakeClock()
    with StopSignals(clock=clock) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        clock.sleep(DEBOUNCE_S / 2)
        os.kill(os.getpid(), signal.SIGINT)
        assert not signals.hurry
        clock.sleep(DEBOUNCE_S)
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.hurry and signals.request is not None and signals.request.exit_code == 130


def test_signal_leaves_a_block_that_obeys_at_once_and_only_that():
    with StopSignals(clock=FakeClock()) as signals:
        with pytest.raises(StoppedEarly) as stopped, signals.obeyed_at_once():
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it goes on")
        assert stopped.value.request == signals.request and stopped.value.request.exit_code == 143
        os.kill(os.getpid(), signal.SIGINT)
    with StopSignals(clock=FakeClock()) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StoppedEarly), signals.obeyed_at_once():
            pytest.fail("a request from before is one as well")


def test_hangup_stays_ignored_under_nohup():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(clock=FakeClock()) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.request is None
    finally:
        signal.signal(signal.SIGHUP, previous)
