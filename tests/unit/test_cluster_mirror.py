"""Words and messages between two machines."""

from __future__ import annotations

import pytest

from tbactl.cluster.messages import Failure, Report, Request, decoded, encoded
from tbactl.cluster.mirror import moved
from tbactl.errors import ChildFailedError


def test_times_move_with_the_clock_and_nothing_else_does():
    words = {"heartbeat_ns": 1_000, "progress_ns": 500, "num_completions": 7, "f_reward_mean": 0.5}
    assert moved(words, by_ns=40) == {
        "heartbeat_ns": 1_040,
        "progress_ns": 540,
        "num_completions": 7,
        "f_reward_mean": 0.5,
    }


def test_time_before_the_other_machine_was_booted_is_its_first_moment():
    assert moved({"started_ns": 1_000}, by_ns=-5_000) == {"started_ns": 1}


def test_time_that_was_never_set_stays_so():
    assert moved({"heartbeat_ns": 0}, by_ns=5_000) == {"heartbeat_ns": 0}


def test_words_are_left_out_by_name():
    assert moved({"pid": 3, "state": 2}, by_ns=0, without=("pid",)) == {"state": 2}


def test_message_comes_back_as_it_was_with_the_largest_words():
    request = Request(now_ns=2**63, supervisor={"started_ns": 1}, trainer={"f_loss": -0.5, "fingerprint": 2**64 - 1})
    assert decoded(encoded(request), Request) == request


@pytest.mark.parametrize("data", [b"", b"\xc1", encoded(Failure(exit_code=5, message="no"))])
def test_bytes_that_are_another_message_or_none_are_refused(data: bytes):
    with pytest.raises(ChildFailedError, match="are no Report"):
        decoded(data, Report)
