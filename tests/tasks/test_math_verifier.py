from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tbactl.types import Completion
from tbactl_math import verifier as verifier_module
from tbactl_math.reward import score_completion
from tbactl_math.verifier import Verifier

BOMB = "9^{9^{9^{9}}}"


# Of what is no bomb: its worker may have to wait for a core.
PATIENT_S = 60.0
BOMB_S = 2.0


@pytest.fixture
def verifier():
    verifier = Verifier(time_limit_s=PATIENT_S)
    yield verifier
    verifier.close()


@pytest.fixture
def hasty(verifier):
    """A block in which the same verifier, and a worker that is there already, has little time."""

    @contextmanager
    def block():
        verifier._time_limit_s = BOMB_S
        yield
        verifier._time_limit_s = PATIENT_S

    return block


def completion(text):
    return Completion(token_ids=(), logprobs=(), text=text, finish_reason="stop")


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, *, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_compare_starts_no_worker_before_it_is_needed(verifier):
    assert verifier.worker_pid is None
    score_completion(completion("#### 5"), gold="5", verifier=verifier)
    assert verifier.worker_pid is None


@pytest.mark.fault("I-42")
def test_compare_bomb_is_killed_replaced_and_costs_once(verifier, hasty):
    assert verifier.compare("\\sqrt{4}", "2").outcome == "equal"
    first = verifier.worker_pid
    with hasty():
        start = time.monotonic()
        assert verifier.compare(BOMB, "1").outcome == "exhausted"
        assert BOMB_S - 0.1 < time.monotonic() - start < 60.0
    assert not is_running(first)
    assert verifier.compare("2\\sqrt{5}", "\\sqrt{20}").outcome == "equal"
    second = verifier.worker_pid
    assert second not in (None, first)
    assert verifier.compare(BOMB, "1").outcome == "exhausted"
    assert verifier.worker_pid == second, "no worker has had to be killed again"


@pytest.mark.fault("I-42")
def test_score_bomb_is_a_wrong_answer_flagged_as_timeout(verifier, hasty):
    with hasty():
        reward = score_completion(completion(f"\\boxed{{{BOMB}}}"), gold="1", verifier=verifier)
    assert (reward.value, reward.error) == (0.0, None)
    assert reward.reason.startswith("timeout") and reward.metrics["is_exhausted"] == 1.0


def test_compare_worker_killed_from_outside_is_replaced_unnoticed(verifier):
    verifier.compare("\\sqrt{4}", "2")
    os.kill(verifier.worker_pid, signal.SIGKILL)
    assert verifier.compare("\\sqrt{9}", "3").outcome == "equal"


@pytest.mark.fault("I-41")
def test_compare_outlives_the_thread_that_started_the_worker(verifier):
    # The kernel ties the worker to that thread, not to the process.
    thread = threading.Thread(target=lambda: verifier.compare("\\sqrt{4}", "2"))
    thread.start()
    thread.join(timeout=200)
    assert verifier.compare("\\sqrt{9}", "3").outcome == "equal"


@pytest.mark.fault("I-41")
def test_compare_verifier_that_does_not_start_is_an_error_not_a_wrong_answer(verifier, monkeypatch):
    monkeypatch.setattr(verifier_module.sys, "executable", "/bin/false")
    reward = score_completion(completion("\\boxed{\\sqrt{4}}"), gold="2", verifier=verifier)
    assert reward.value == 0.0 and reward.error is not None and "does not start" in reward.error
    monkeypatch.undo()
    assert score_completion(completion("\\boxed{\\sqrt{4}}"), gold="2", verifier=verifier).value == 1.0


def test_compare_text_is_never_evaluated(verifier, tmp_path):
    marker = tmp_path / "evaluated"
    code = f"__import__('pathlib').Path('{marker}').touch()"
    for text in (code, f"\\text{{{code}}}", f"\\operatorname{{{code}}}", f"x = {code}", f"\\sqrt{{{code}}}"):
        verifier.compare(text, "1")
        verifier.compare("1", text)
    assert not marker.exists()


def test_compare_what_cannot_be_read_is_said(verifier):
    comparison = verifier.compare("\\frac{", "x+1")
    assert comparison.outcome in ("unreadable", "different")
    assert verifier.compare("", "x").outcome == "unreadable"


@pytest.mark.fault("I-42")
def test_worker_memory_is_limited(verifier):
    verifier.compare("\\sqrt{4}", "2")
    limits = Path(f"/proc/{verifier.worker_pid}/limits").read_text().splitlines()
    (address_space,) = (line.split()[3:5] for line in limits if line.startswith("Max address space"))
    assert address_space == [str(verifier_module.MEMORY_LIMIT_BYTES)] * 2


def test_worker_dies_with_a_parent_that_is_killed():
    code = (
        "import time; from tbactl_math.verifier import Verifier; v = Verifier(time_limit_s=60);"
        "v.compare('x', 'x+0'); print(v.worker_pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with parent:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.kill()
        parent.wait(timeout=60)
    assert wait_until(lambda: not is_running(worker))


def test_close_ends_the_worker(verifier):
    verifier.compare("\\sqrt{4}", "2")
    worker = verifier.worker_pid
    verifier.close()
    assert not is_running(worker) and verifier.worker_pid is None
