from __future__ import annotations

import math
import threading
import time

import pytest

from tbactl.clock import FakeClock, SystemClock
from tbactl.errors import TaskError
from tbactl.searcher.prompt_stream import StreamedPrompt
from tbactl.searcher.scoring import GeneratedGroup, Scorer, score_group
from tbactl.testing.fake_task import FakeTask
from tbactl.types import Completion, Prompt, Reward


def completion(text: str) -> Completion:
    return Completion(token_ids=(1,), logprobs=(-1.0,), text=text, finish_reason="stop")


def group(*texts: str, position: int = 0, num_failed: int = 0) -> GeneratedGroup:
    streamed = StreamedPrompt(position=position, prompt=Prompt(prompt_id=5, text="p"), token_ids=(1,))
    return GeneratedGroup(streamed=streamed, completions=tuple(map(completion, texts)), num_failed=num_failed)


class TaskWith(FakeTask):
    """A task whose reward is a given function of (number, text)."""

    name = "odd"

    def __init__(self, reward):
        super().__init__()
        self._reward = reward

    def score(self, prompt, completions):
        return [self._reward(c.text) for c in completions]


def test_score_keeps_order_and_values():
    scored = score_group(FakeTask(), group("aa", "ab", "bb"))
    assert [(c.text, r) for c, r in scored.scored] == [("aa", 1.0), ("ab", 0.5), ("bb", 0.0)]
    assert scored.num_failed == 0


def test_what_is_said_of_completions_is_kept_also_of_those_that_are_dropped():
    error = {"bad": "no answer"}
    task = TaskWith(lambda text: Reward(value=1.0, error=error.get(text), metrics={"length": len(text)}))
    scored = score_group(task, group("good", "bad"))
    assert [dict(metrics) for metrics in scored.metrics] == [{"length": 4}, {"length": 3}]
    assert len(scored.scored) == 1


@pytest.mark.fault("I-48")
@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1"])
def test_reward_that_is_no_finite_number_drops_its_completion_only(value):
    task = TaskWith(lambda text: Reward(value=value if text == "bad" else 1.0))
    scored = score_group(task, group("good", "bad", "fine"))
    assert [c.text for c, _ in scored.scored] == ["good", "fine"]
    assert scored.num_failed == 1 and "not a finite number" in scored.failure


@pytest.mark.fault("I-48")
def test_reward_that_raises_for_one_completion_drops_that_one_only():
    def reward(text):
        if text == "bad":
            raise RuntimeError("boom")
        return Reward(value=0.25)

    scored = score_group(TaskWith(reward), group("x", "bad", "y", num_failed=2))
    assert [(c.text, r) for c, r in scored.scored] == [("x", 0.25), ("y", 0.25)]
    assert scored.num_failed == 3 and "boom" in scored.failure


def test_reward_with_an_error_is_dropped_and_counted():
    scored = score_group(FakeTask(fail_every=2), group("a", "a", "a", "a"))
    assert len(scored.scored) == 2 and scored.num_failed == 2


@pytest.mark.fault("I-48")
def test_numpy_numbers_and_booleans_are_rewards():
    numpy = pytest.importorskip("numpy")
    scored = score_group(TaskWith(lambda text: Reward(value=numpy.float32(0.5))), group("x"))
    assert scored.scored[0][1] == 0.5 and type(scored.scored[0][1]) is float
    assert score_group(TaskWith(lambda text: Reward(value=True)), group("x")).scored[0][1] == 1.0


class ShortTask(FakeTask):
    name = "short"

    def score(self, prompt, completions):
        return super().score(prompt, completions)[:-1]


class WrongTypeTask(FakeTask):
    name = "wrong-type"

    def score(self, prompt, completions):
        return [1.0 for _ in completions]  # pyright: ignore[reportReturnType]


@pytest.mark.fault("I-48")
@pytest.mark.parametrize("task", [ShortTask(), WrongTypeTask()], ids=lambda task: task.name)
def test_task_that_breaks_its_contract_is_named(task):
    with pytest.raises(TaskError, match=task.name):
        score_group(task, group("a", "b"))


def test_a_group_without_completions_never_reaches_the_task():
    assert score_group(ShortTask(), group(num_failed=3)).num_failed == 3


def collect(scorer: Scorer, count: int):
    found = []
    until = time.monotonic() + 60.0
    while len(found) < count and time.monotonic() < until:
        found += scorer.collect()
        time.sleep(0.001)
    return found


def test_scorer_returns_groups_in_order():
    scorer = Scorer(FakeTask(), clock=SystemClock(), limit_s=60.0)
    for position in range(20):
        scorer.submit(group("a", "b", position=position))
    assert [g.streamed.position for g in collect(scorer, 20)] == list(range(20))
    assert scorer.num_pending == 0
    scorer.close()


def test_scorer_reports_a_broken_task_where_it_is_collected():
    scorer = Scorer(ShortTask(), clock=SystemClock(), limit_s=60.0)
    scorer.submit(group("a", "b"))
    with pytest.raises(TaskError, match="short"):
        collect(scorer, 1)
    scorer.close()


@pytest.mark.fault("I-11")
def test_scorer_notices_a_reward_that_never_returns():
    entered, release = threading.Event(), threading.Event()
    clock = FakeClock()

    def endless(text: str) -> Reward:
        entered.set()
        release.wait(120.0)
        return Reward(value=0.0)

    scorer = Scorer(TaskWith(endless), clock=clock, limit_s=30.0)
    scorer.submit(group("a"))
    assert scorer.collect() == [] and entered.wait(60.0)
    clock.sleep(31.0)
    with pytest.raises(TaskError, match="has not returned for 31 s") as caught:
        scorer.collect()
    assert f"endless ({__file__}:" in str(caught.value), "the line that it does not get beyond"
    release.set()
    scorer.close()
