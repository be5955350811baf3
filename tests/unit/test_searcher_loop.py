from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tbactl.clock import FakeClock
from tbactl.errors import ChildFailedError, TaskError
from tbactl.ipc.control_page import ProcessState, RunState
from tbactl.protocols import FinishedRequest
from tbactl.searcher.evaluation import MARKER
from tbactl.testing.fake_policy import FakePolicy
from tbactl.testing.fake_task import FakeTask
from tbactl.types import SamplingParams
from tests.support.searchers import MAX_TURNS, SearcherHarness

SYNC = {"mode": "sync", "sync": {"period": 1}, "replay": {"on_policy_fraction": 1.0}}
EVALUATION = {"evaluation": {"num_prompts": 5}, "supervision": {"evaluation_timeout_s": 30.0}}


@pytest.fixture
def make(tmp_path):
    made = []

    def build(name: str = "run", **arguments) -> SearcherHarness:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        harness = SearcherHarness(root, **arguments)
        made.append(harness)
        return harness

    yield build
    for harness in made:
        harness.close()


def with_searchers(settings=None, **changes):
    searchers = {"engine": "fake", "num_completions": 3, "max_new_tokens": 8, "max_concurrent_groups": 2}
    return (settings or {}) | {"searchers": searchers | changes}


def test_searcher_writes_whole_groups_of_consecutive_prompts(make):
    searcher = make()
    groups = searcher.groups_after(6)
    assert {len(group.trajectories) for group in groups} == {3}
    stream = FakeTask(num_prompts=50).prompts("train", seed=0)
    expected = [next(stream).prompt_id for _ in groups]
    assert sorted(group.prompt_id for group in groups) == sorted(expected)
    for group in groups:
        for trajectory in group.trajectories:
            assert trajectory.reward == pytest.approx(
                trajectory.completion.text.count("a") / max(1, len(trajectory.completion.text))
            )
    uids = [trajectory.uid for group in groups for trajectory in group.trajectories]
    assert len(set(uids)) == len(uids)


# Every eighth token ends a completion: lengths differ much.
UNEVEN = FakePolicy(np.array([1.3, *[0.0] * 26], dtype=np.float32))


class Places:
    """What is in flight at each step of the engine of a searcher with 2 groups of 3 completions at a time."""

    def __init__(self, searcher: SearcherHarness) -> None:
        self._searcher = searcher
        self._step = searcher.engine.step
        self._done: dict[str, int] = {}
        self.num_open: list[int] = []
        self.num_busy: list[int] = []
        self.is_held_up: list[bool] = []
        searcher.engine.step = self.step

    def step(self) -> list[FinishedRequest]:
        """In place of the engine's own."""
        num_finished = sum(number == 3 for number in self._done.values())
        self.num_open.append(self._searcher.slot.get("num_prompts_started") - num_finished)
        self.num_busy.append(self._searcher.engine.num_unfinished)
        self.is_held_up.append(self._searcher.scorer.num_pending + self._searcher.outbox.num_waiting >= 2)
        finished = self._step()
        for request in finished:
            position = request.request_id.split("-")[0]
            self._done[position] = self._done.get(position, 0) + 1
        return finished


def test_groups_are_begun_as_soon_as_their_completions_have_places(make):
    searcher = make(settings=with_searchers(max_new_tokens=60))
    searcher.publish(1, policy=UNEVEN)
    places = Places(searcher)
    groups = searcher.groups_after(40)
    assert len({group.prompt_id for group in groups}) == len(groups) and max(places.num_busy) <= 6
    assert 2 < max(places.num_open) <= 4
    for busy, num_open, is_held_up in zip(places.num_busy, places.num_open, places.is_held_up, strict=True):
        assert busy + 3 > 6 or num_open == 4 or is_held_up


def test_mode_sync_begins_a_group_where_a_whole_one_was(make):
    searcher = make(settings=with_searchers(SYNC, max_new_tokens=60))
    searcher.publish(1, policy=UNEVEN)
    places = Places(searcher)
    searcher.trainer.set(granted_groups=20)
    searcher.groups_after(20)
    assert max(places.num_open) == 2
    assert any(busy + 3 <= 6 and num_open == 2 for busy, num_open in zip(places.num_busy, places.num_open, strict=True))


def test_groups_that_wait_for_their_last_completion_are_bounded(make):
    searcher = make(settings=with_searchers(num_completions=6))
    step, last = searcher.engine.step, []
    searcher.engine.step = lambda: [
        request for request in step() if not request.request_id.endswith("-0") or last.append(request)
    ]
    searcher.turns(60)
    # Their last completions take 4 of 12 places: the others would be enough for one more.
    assert searcher.slot.get("num_prompts_started") == 4 and len(last) == 4 and searcher.groups() == []
    searcher.engine.step = lambda: [*step(), *(last.pop() for _ in range(len(last)))]
    assert {len(group.trajectories) for group in searcher.groups_after(6)} == {6}


@pytest.mark.fault("I-05")
def test_failed_requests_cost_their_completion_only(make):
    searcher = make(settings=with_searchers(num_completions=4, engine_options={"fail_every": 5}))
    groups = searcher.groups_after(5)
    assert {len(group.trajectories) for group in groups} <= {3, 4}
    assert searcher.slot.get("num_failed") >= sum(group.num_failed for group in groups) > 0


def test_when_everything_fails_the_searcher_gives_up_with_the_reason(make):
    searcher = make(settings=with_searchers(engine_options={"fail_every": 1}))
    with pytest.raises(ChildFailedError, match="the engine failed"):
        searcher.turns(MAX_TURNS)


def turns_until_it_fails(searcher: SearcherHarness, clock: FakeClock) -> None:
    for _ in range(MAX_TURNS):
        searcher.turns(1)
        clock.sleep(0.1)


SHORT = {"supervision": {"progress_timeout_s": 5.0}}


@pytest.mark.fault("I-16")
def test_engine_that_turns_and_finishes_nothing_ends_the_searcher(make):
    clock = FakeClock()
    options = {"faults": [{"kind": "starve"}]}
    searcher = make(settings=with_searchers(SHORT, engine_options=options, max_prompt_tokens=32), clock=clock)
    with pytest.raises(ChildFailedError, match="the engine has 6 open requests, and has finished none for"):
        turns_until_it_fails(searcher, clock)
    assert 2 * (32 + 8) < searcher.slot.get("progress_count") < 100


@pytest.mark.fault("I-16")
def test_engine_that_has_lost_its_requests_ends_the_searcher(make):
    clock = FakeClock()
    searcher = make(settings=with_searchers(SHORT), clock=clock)
    searcher.turns(1)
    searcher.engine._waiting.clear()
    searcher.engine._running.clear()
    assert searcher.engine.num_unfinished == 0
    with pytest.raises(ChildFailedError, match=r"the engine has \d open requests, and has finished none for"):
        turns_until_it_fails(searcher, clock)


def test_searcher_without_open_requests_may_wait_for_long(make):
    clock = FakeClock()
    searcher = make(settings=SYNC | with_searchers(SHORT, max_prompt_tokens=32), clock=clock)
    for _ in range(1000):  # no group is granted
        searcher.turns(1)
        clock.sleep(0.1)
    searcher.trainer.set(granted_groups=2)
    assert len(searcher.groups_after(2)) == 2


def test_broken_task_ends_the_searcher(make):
    class Broken(FakeTask):
        name = "broken"

        def score(self, prompt, completions):
            return []

    searcher = make(task=Broken(num_prompts=50))
    with pytest.raises(TaskError, match="broken"):
        searcher.turns(MAX_TURNS)


@pytest.mark.fault("I-17")
def test_full_ring_stops_new_prompts_and_nothing_is_lost(make):
    searcher = make(ring_capacity_bytes=4096)
    searcher.turns_until_held_up()
    started = searcher.slot.get("num_prompts_started")
    searcher.turns(200)
    assert searcher.slot.get("num_prompts_started") == started, "a full ring must be back-pressure"
    groups = searcher.groups_after(started + 4)
    assert len({group.prompt_id for group in groups}) == len(groups)


@pytest.mark.fault("I-12")
def test_new_weights_are_loaded_between_steps_and_tag_what_follows(make):
    searcher = make()
    first = searcher.groups_after(2)
    assert {group.newest_version for group in first} == {0}
    searcher.publish(3)
    searcher.turns(1)
    assert searcher.slot.get("loaded_version") == 3 and searcher.slot.get("num_syncs") == 1
    assert searcher.slot.get("num_alarms") == 0
    assert 0.0 <= searcher.slot.get_float("f_logprob_difference") < 1e-5
    assert searcher.slot.get("fingerprint") != 0
    later = searcher.groups_after(8)
    spans = {(t.completion.first_version, t.completion.last_version) for g in later for t in g.trajectories}
    assert (3, 3) in spans and spans <= {(0, 0), (0, 3), (3, 3)}


def test_sampling_temperature_follows_the_loaded_version(make):
    temperatures = {"temperature": 2.0, "temperature_final": 1.0, "temperature_steps": 10}
    searcher = make(settings=with_searchers(**temperatures))
    submitted = []
    submit = searcher.engine.submit
    searcher.engine.submit = lambda request: (submitted.append(request.sampling.temperature), submit(request))
    searcher.groups_after(3)
    assert set(submitted) == {2.0}
    for version, expected in ((5, 1.5), (10, 1.0), (15, 1.0)):
        searcher.publish(version)
        searcher.turns(1)  # takes the weights; what is in flight keeps its temperature
        submitted.clear()
        searcher.groups_after(12)  # more than can be under way, so new ones were begun
        assert set(submitted) == {expected}


def test_completions_of_training_and_evaluation_end_at_the_same_strings(make):
    searcher = make(settings=with_searchers(EVALUATION, stop_strings=["b"], max_new_tokens=40))
    submitted = []
    submit = searcher.engine.submit
    searcher.engine.submit = lambda request: (submitted.append(request), submit(request))
    groups = searcher.groups_after(6)
    assert {request.sampling.stop_strings for request in submitted} == {("b",)}
    assert any(request.request_id.startswith("evaluation-0") for request in submitted)
    completions = [trajectory.completion for group in groups for trajectory in group.trajectories]
    assert any(completion.text.endswith("b") for completion in completions)
    assert all("b" not in completion.text[:-1] for completion in completions)


@pytest.mark.fault("I-18")
def test_weights_that_do_not_take_effect_raise_an_alarm(make):
    searcher = make(settings=with_searchers(engine_options={"ignore_weights": True}))
    searcher.publish(1)
    searcher.turns(2)
    assert searcher.slot.get("num_alarms") == 1
    assert searcher.slot.get_float("f_logprob_difference") > 1e-3


@pytest.mark.fault("I-13")
def test_resumed_searcher_waits_for_the_trainers_weights(make):
    searcher = make(must_load=True)
    searcher.turns(50)
    assert searcher.slot.get("num_prompts_started") == 0
    searcher.publish(20)
    assert {group.newest_version for group in searcher.groups_after(3)} == {20}


@pytest.mark.fault("I-07")
def test_searcher_restarted_after_a_crash_repeats_only_what_was_in_flight(make):
    before = make()
    first = before.groups_after(7)
    position = before.slot.get("stream_position")
    before.turns(3)  # some prompts are in flight when it dies
    first += before.groups()
    position = before.slot.get("stream_position")
    before.close()
    after = make(start=position, attempt=2)
    second = after.groups_after(6)
    seen = [group.prompt_id for group in first + second]
    stream = FakeTask(num_prompts=50).prompts("train", seed=0)
    expected = [next(stream).prompt_id for _ in range(len(set(seen)) - 2)]
    assert set(expected) <= set(seen), "a prompt was skipped"
    assert len(seen) - len(set(seen)) <= 2, "more was repeated than was in flight"
    uids = [trajectory.uid for group in first + second for trajectory in group.trajectories]
    assert len(set(uids)) == len(uids)


@pytest.mark.fault("I-13")
def test_sync_mode_starts_what_is_granted_and_writes_in_order(make):
    searcher = make(settings=with_searchers(SYNC, max_concurrent_groups=3))
    searcher.turns(30)
    assert searcher.slot.get("num_prompts_started") == 0
    searcher.trainer.set(granted_groups=5)
    groups = searcher.groups_after(5)
    searcher.turns(30)
    assert searcher.slot.get("num_prompts_started") == 5 and searcher.groups() == []
    assert [group.stream_position for group in groups] == [1, 2, 3, 4, 5]
    searcher.trainer.set(published_version=1, granted_groups=7)  # announced, but its file is not there
    searcher.turns(30)
    assert searcher.slot.get("num_prompts_started") == 5, "it must not start on old weights"
    searcher.publish(1)
    assert [group.newest_version for group in searcher.groups_after(2)] == [1, 1]


def test_sync_mode_gives_the_same_bits_for_the_same_seed(make):
    def explore(name, seed):
        searcher = make(name, settings=with_searchers(SYNC, max_concurrent_groups=3) | {"seed": seed})
        groups = []
        for version in range(3):
            if version:
                searcher.publish(version)
            searcher.trainer.set(granted_groups=4 * (version + 1))
            groups += searcher.groups_after(4)
        return groups

    assert explore("a", 1) == explore("b", 1)
    assert explore("c", 2) != explore("d", 1)


def test_sync_mode_two_searchers_share_the_grant(make):
    settings = with_searchers(SYNC, num_searchers=2)
    both = [make(settings=settings, index=index) for index in range(2)]
    both[0].trainer.set(granted_groups=5)
    groups = [searcher.groups_after(count) for searcher, count in zip(both, (3, 2), strict=True)]
    assert [len(own) for own in groups] == [3, 2]
    assert len({group.prompt_id for own in groups for group in own}) == 5


def test_evaluation_leaves_prompts_unanswered_that_training_would_skip(make):
    class LongOnes(FakeTask):
        def prompts(self, split, *, seed):
            for prompt in super().prompts(split, seed=seed):
                yield prompt if split == "train" else replace(prompt, text="x" * 40)

        def evaluate(self, generate, *, limit, seed, policy_version):
            prompts = self.evaluation_prompts(limit=limit, seed=seed)
            self.answers = generate(prompts, 1, SamplingParams(max_new_tokens=4))
            return super().evaluate(generate, limit=limit, seed=seed, policy_version=policy_version)

    task = LongOnes(num_prompts=50)
    searcher = make(settings=with_searchers(EVALUATION, max_prompt_tokens=39, max_new_tokens=30), held_out_task=task)
    searcher.turns(1)
    assert {completion.finish_reason for row in task.answers for completion in row} == {"abort"}


def test_evaluation_comes_first_and_is_recorded_with_its_version(make):
    searcher = make(settings=EVALUATION)
    searcher.turns(1)
    assert searcher.slot.get("evaluated_version_plus_1") == 1 and searcher.slot.get("num_prompts_started") == 0
    searcher.groups_after(2)
    searcher.publish(4)
    searcher.trainer.set(evaluate_version=4)
    searcher.publish(5)
    searcher.turns(1)
    assert searcher.slot.get("evaluated_version_plus_1") == 5
    lines = [json.loads(line) for line in searcher.config.layout.evaluations.read_text().splitlines()]
    assert [line["policy_version"] for line in lines] == [0, 4]
    assert all(line["num_prompts"] == 5 and line["seconds"] > 0 and line["elapsed_s"] > 0 for line in lines)
    searcher.turns(1)
    assert searcher.slot.get("loaded_version") == 5
    assert searcher.slot.get("evaluating") == 0


def test_evaluation_lets_training_requests_go_on(make):
    searcher = make(settings=EVALUATION)
    searcher.turns(4)
    assert searcher.engine.num_unfinished > 0
    started = searcher.slot.get("num_prompts_started")
    searcher.publish(1)
    searcher.trainer.set(evaluate_version=1)
    groups = searcher.groups_after(started)
    assert len({group.prompt_id for group in groups}) == len(groups) >= started


def test_restarted_searcher_does_not_evaluate_a_version_again(make):
    first = make(settings=EVALUATION)
    first.turns(1)
    assert (first.config.shm.root / MARKER).read_text() == "0"
    first.close()
    second = make(settings=EVALUATION, attempt=2)
    assert second.slot.get("evaluated_version_plus_1") == 1
    second.turns(5)
    assert len(second.config.layout.evaluations.read_text().splitlines()) == 1


def test_searchers_other_than_the_first_never_evaluate(make):
    searcher = make(settings=with_searchers(EVALUATION, num_searchers=2), index=1)
    searcher.turns(5)
    assert not searcher.config.layout.evaluations.exists()


def test_evaluation_that_takes_too_long_is_an_alarm_and_exploring_goes_on(make):
    settings = with_searchers(EVALUATION | {"supervision": {"evaluation_timeout_s": 0.001}})
    searcher = make(settings=settings)
    assert len(searcher.groups_after(4)) >= 4
    assert searcher.slot.get("num_alarms") == 1 and searcher.slot.get("evaluated_version_plus_1") == 1
    assert not searcher.config.layout.evaluations.exists()


class LongJudging(FakeTask):
    """Asks for completions once, then computes for long, and says now and then that it goes on."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(num_prompts=50)
        self.num_pulses = 0
        self._work = work

    def evaluate(self, generate, *, limit, seed, policy_version):
        generate(self.evaluation_prompts(limit=limit, seed=seed), 1, SamplingParams(max_new_tokens=1))
        for _ in range(1000):
            self._work()
            assert generate((), 1, SamplingParams(max_new_tokens=1)) == []
            self.num_pulses += 1
        raise AssertionError("it was not ended")


def test_evaluation_that_judges_for_long_is_progress_until_its_time_is_over(make):
    clock = FakeClock()
    task = LongJudging(lambda: clock.sleep(0.02))
    settings = with_searchers(EVALUATION | {"supervision": {"evaluation_timeout_s": 0.3}})
    searcher = make(settings=settings, held_out_task=task, clock=clock)
    searcher.turns(1)
    assert searcher.slot.get("progress_count") > task.num_pulses
    assert 13 < task.num_pulses < 17
    assert searcher.slot.get("num_alarms") == 1 and searcher.slot.get("evaluated_version_plus_1") == 1


def test_evaluation_that_judges_for_long_ends_with_the_run(make):
    task = LongJudging(lambda: task.num_pulses == 4 and end())
    searcher = make(settings=EVALUATION, held_out_task=task)

    def end() -> None:
        searcher.page.supervisor.set(run_state=RunState.DRAINING)

    searcher.turns(1)
    assert task.num_pulses == 4


@pytest.mark.fault("I-08")
def test_finished_training_stops_new_prompts_but_not_the_last_evaluation(make):
    searcher = make(settings=EVALUATION)
    searcher.groups_after(2)
    searcher.publish(9)
    searcher.trainer.set(finished=1, evaluate_version=9)
    searcher.turns(2)
    started = searcher.slot.get("num_prompts_started")
    searcher.turns(60)
    assert searcher.slot.get("num_prompts_started") == started
    assert searcher.slot.get("evaluated_version_plus_1") == 10
    assert searcher.engine.num_unfinished == 0


def test_run_drains_what_is_finished_and_ends_when_told(make):
    searcher = make(task=FakeTask(num_prompts=50, score_seconds=0.05))
    thread = threading.Thread(target=searcher.searcher.run)
    thread.start()

    def wait_while(is_so) -> None:
        while is_so():
            assert thread.is_alive()
            searcher.clock.sleep(0.01)

    wait_while(lambda: searcher.slot.get("num_completions") < 30)
    searcher.page.supervisor.set(run_state=RunState.DRAINING)
    wait_while(lambda: searcher.slot.get("state") != ProcessState.DRAINING)
    wait_while(lambda: searcher.scorer.num_pending + searcher.outbox.num_waiting)
    searcher.clock.sleep(0.3)
    started = searcher.slot.get("num_prompts_started")
    assert thread.is_alive(), "it waits for STOPPING"
    searcher.page.supervisor.set(run_state=RunState.STOPPING)
    thread.join(timeout=60.0)
    assert not thread.is_alive()
    assert searcher.slot.get("num_prompts_started") == started
    groups = searcher.groups()
    assert len(groups) == searcher.slot.get("num_groups_written") >= started - 2
    assert searcher.scorer.num_pending == 0


@pytest.mark.fault("I-02")
def test_refused_weights_end_the_searcher(make):
    searcher = make()
    policy = FakePolicy.initial(searcher.config.shm.root)
    searcher.publish(1, policy=policy)
    path = next(searcher.config.shm.weights.glob("*.safetensors"))
    path.chmod(0o600)
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"other": np.zeros(3, dtype=np.float32)}, path)
    with pytest.raises(ChildFailedError, match="other"):
        searcher.turns(1)


def test_replaced_searcher_evaluates_the_version_it_starts_with_before_newer_weights(make):
    searcher = make(settings=EVALUATION)
    searcher.publish(3)
    searcher.turns(2)
    (line,) = searcher.config.layout.evaluations.read_text().splitlines()
    assert json.loads(line)["policy_version"] == 0
    assert searcher.slot.get("loaded_version") == 3


def test_resumed_searcher_loads_before_it_evaluates(make):
    searcher = make(settings=EVALUATION, must_load=True)
    searcher.turns(2)
    assert not searcher.config.layout.evaluations.exists()
    searcher.publish(20)
    searcher.trainer.set(evaluate_version=20)
    searcher.turns(2)
    (line,) = searcher.config.layout.evaluations.read_text().splitlines()
    assert json.loads(line)["policy_version"] == 20


@pytest.mark.fault("I-15")
def test_no_group_is_started_before_all_processes_are_ready(make):
    searcher = make(settings=EVALUATION)
    searcher.page.supervisor.set(run_state=RunState.STARTING)
    searcher.turns(5)
    assert searcher.slot.get("evaluated_version_plus_1") == 1 and searcher.slot.get("num_prompts_started") == 0
    searcher.page.supervisor.set(run_state=RunState.RUNNING)
    searcher.turns(1)
    assert searcher.slot.get("num_prompts_started") > 0


@pytest.mark.parametrize("content", ["", "1x"])
def test_damaged_marker_counts_as_none(make, content):
    searcher = make(settings=EVALUATION)
    searcher.turns(1)
    (searcher.config.shm.root / MARKER).write_text(content)
    searcher.close()
    assert make(settings=EVALUATION, attempt=2).slot.get("evaluated_version_plus_1") == 1
    searcher.config.layout.evaluations.unlink()
    assert make(settings=EVALUATION, attempt=3).slot.get("evaluated_version_plus_1") == 0


def test_weights_that_vanish_before_they_are_read_leave_the_engine_as_it_is(make):
    searcher = make()
    searcher.publish(1)
    path = next(searcher.config.shm.weights.glob("*.safetensors"))
    path.unlink()
    searcher.turns(3)
    assert searcher.engine.policy_version == 0 and searcher.slot.get("num_syncs") == 0
    searcher.publish(2)
    searcher.turns(1)
    assert searcher.engine.policy_version == 2


@pytest.mark.fault("I-13")
def test_full_ring_does_not_keep_new_weights_out(make):
    searcher = make(ring_capacity_bytes=4096)
    searcher.turns_until_held_up()
    written = searcher.slot.get("num_groups_written")
    searcher.publish(3)
    searcher.turns(1)
    assert searcher.slot.get("loaded_version") == 3
    assert searcher.slot.get("num_groups_written") == written, "the ring must still be full"
    assert searcher.groups_after(written + 4)[-1].newest_version == 3


@pytest.mark.fault("I-11")
def test_reward_that_takes_long_does_not_hold_up_the_loop(make):
    release, of_the_loop = threading.Event(), threading.current_thread()

    class Slow(FakeTask):
        def score(self, prompt, completions):
            assert threading.current_thread() is not of_the_loop and release.wait(120.0)
            return super().score(prompt, completions)

    searcher = make(task=Slow(num_prompts=50))
    searcher.turns(50)
    assert searcher.scorer.num_pending > 0 and not searcher.groups()
    progress, completions = searcher.slot.get("progress_count"), searcher.slot.get("num_completions")
    searcher.publish(1)
    searcher.turns(50)
    assert searcher.slot.get("progress_count") >= progress + 50 and searcher.slot.get("loaded_version") == 1
    assert searcher.slot.get("num_completions") >= completions > 0
    release.set()
    assert len(searcher.groups_after(3)) >= 3
