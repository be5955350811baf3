import pytest

from tbactl.clock import FakeClock
from tbactl.errors import ChildFailedError
from tbactl.searcher.engine_watch import EngineWatch


def watched(clock: FakeClock) -> EngineWatch:
    return EngineWatch(clock=clock, limit_s=10.0, max_tokens=5)


def steps(watch: EngineWatch, clock: FakeClock, *, count: int, each_s: float, num_finished: int = 0) -> None:
    for _ in range(count):
        clock.sleep(each_s)
        watch.note_step(num_finished=num_finished, num_open=3)


@pytest.mark.fault("I-16")
def test_engine_that_finishes_nothing_for_too_long_and_too_many_steps_is_named(capfd):
    clock = FakeClock()
    message = r"3 open requests.*none for 11 s and 11 steps.*progress_timeout_s = 10, and 10 steps.*raise supervision"
    with pytest.raises(ChildFailedError, match=message):
        steps(watched(clock), clock, count=11, each_s=1.0)
    assert "in note_step" in capfd.readouterr().err, "the stacks are above the message"


def test_slow_engine_may_take_as_many_steps_as_its_requests_have_tokens():
    clock = FakeClock()
    steps(watched(clock), clock, count=10, each_s=100.0)


def test_engine_that_only_asks_elsewhere_may_take_as_many_steps_as_there_is_time():
    clock = FakeClock()
    steps(watched(clock), clock, count=9_000, each_s=0.001)


@pytest.mark.parametrize("restart", ["finished", "begin"])
def test_limits_count_from_the_last_finished_request_or_the_end_of_other_work(restart: str):
    clock = FakeClock()
    watch = watched(clock)
    for _ in range(5):
        steps(watch, clock, count=9, each_s=2.0)
        if restart == "finished":
            steps(watch, clock, count=1, each_s=2.0, num_finished=1)
        else:
            watch.begin()
