"""From the control page to events, and from events to what is printed at the end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tbactl.clock import FakeClock
from tbactl.config.layout import RunLayout
from tbactl.config.run_record import RunRecord
from tbactl.config.sections import RunConfig
from tbactl.dashboard.describe import describe_event
from tbactl.ipc.control_page import AlarmKind, ControlPage, ProcessState
from tbactl.supervision import progress
from tbactl.supervision.events import EventLog
from tbactl.supervision.progress import ProgressRecorder
from tbactl.supervision.summary import print_summary, summarise, summary_lines
from tests.support.dashboard_states import make_record


class Scene:
    """A recorder over a page whose clock and words the test moves."""

    def __init__(self, tmp_path: Path) -> None:
        self.layout = RunLayout(tmp_path)
        self.clock = FakeClock(start_s=1000.0)
        self.page = ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=1)
        self.log = EventLog(self.layout.events, clock=self.clock)
        self.completions = 0
        self.recorder = ProgressRecorder(
            self.page,
            evaluations=self.layout.evaluations,
            events=self.log,
            num_completions=lambda: self.completions,
        )

    def pass_time(self, seconds: float, *, completions: int = 0) -> None:
        self.clock.sleep(seconds)
        self.completions += completions

    def train_to(self, version: int) -> None:
        self.page.trainer().set(policy_version=version)
        self.recorder.observe()

    def evaluate(self, version: int, accuracy: float) -> None:
        line = {
            "task": "math", "policy_version": version, "num_prompts": 512,
            "metrics": {"accuracy": accuracy, "tokens": 50.0},
            "intervals": {"accuracy": [accuracy - 0.04, accuracy + 0.04]},
        }  # fmt: skip
        with self.layout.evaluations.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.recorder.observe()

    def events(self, kind: str) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in self.layout.events.read_text().splitlines()]
        return [event for event in events if event["kind"] == kind]

    def record(self, **changes: Any) -> None:
        record: RunRecord = make_record(outcome="finished", duration_s=100.0, training_s=90.0, steps=40, **changes)
        self.layout.identity.write_text(record.model_dump_json())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with scene.log:
        yield scene


def config(*, target: float | None = None) -> RunConfig:
    return RunConfig.model_validate(
        {"name": "t", "task": {"kind": "fake"}, "policy": {"path": "p"}, "evaluation": {"target": target}}
    )


def train(scene: Scene) -> None:
    """10 s of start-up, evaluation, 20 steps of 1 s and 100 completions, the evaluation of step 10 coming 7 s late."""
    scene.pass_time(10.0)
    scene.recorder.start_training()
    scene.train_to(0)
    scene.evaluate(0, 0.2)
    for version in range(1, 21):
        scene.pass_time(1.0, completions=100)
        scene.train_to(version)
        if version == 17:
            scene.evaluate(10, 0.6)
    scene.evaluate(20, 0.7)


def test_evaluation_is_charged_with_what_its_policy_had_cost_not_with_its_own_delay(scene: Scene):
    train(scene)
    details = [event["details"] for event in scene.events("evaluation")]
    assert [(d["policy_version"], d["completions"], d["training_s"]) for d in details] == [
        (0, 0, 0.0), (10, 1000, 10.0), (20, 2000, 20.0),
    ]  # fmt: skip
    assert details[1]["elapsed_s_at_version"] == 20.0


def test_steps_that_pass_between_two_looks_are_charged_to_the_later_look(scene: Scene):
    scene.recorder.start_training()
    scene.train_to(0)
    scene.pass_time(4.0, completions=50)
    scene.train_to(5)
    milestone = scene.recorder.milestone(3)
    assert milestone is not None and (milestone.policy_version, milestone.training_s) == (5, 4.0)
    assert scene.recorder.milestone(6) is None


def test_changes_on_the_page_become_one_event_each(scene: Scene):
    for _ in range(3):
        scene.recorder.observe()
    scene.page.searcher(0).set(state=ProcessState.READY, pid=7)
    scene.page.trainer().set(checkpoint_step=10, finished=1, policy_version=12)
    scene.page.searcher(0).set(num_alarms=2, alarm_kind=AlarmKind.WEIGHTS, f_logprob_difference=0.5)
    for _ in range(3):
        scene.recorder.observe()
    assert scene.events("child_ready")[0]["details"] == {"pid": 7}
    assert [event["details"]["step"] for event in scene.events("checkpoint")] == [10]
    assert [event["details"]["steps"] for event in scene.events("training_finished")] == [12]
    assert [event["details"]["logprob_difference"] for event in scene.events("alarm")] == [0.5]


def test_alarm_says_what_it_is_about(scene: Scene):
    for number, kind in enumerate((AlarmKind.EVALUATION, AlarmKind.DELIVERY, AlarmKind.WEIGHTS), start=1):
        scene.page.searcher(0).set(num_alarms=number, alarm_kind=kind)
        scene.recorder.observe()
    assert [event["details"]["about"] for event in scene.events("alarm")] == ["evaluation", "delivery", "weights"]
    shown = [describe_event(event).text for event in scene.events("alarm")]
    assert shown[:2] == ["an evaluation failed", "a group could not be delivered"]
    assert shown[2].startswith("new weights: alarm, log-prob difference")


def test_missed_evaluation_is_said_once_and_not_where_there_is_a_result(scene: Scene):
    scene.recorder.start_training()
    for version in (4, 8):
        scene.page.trainer().set(policy_version=version, evaluate_version=version)
        scene.recorder.observe()
    scene.evaluate(4, 0.5)
    scene.recorder.record_missed(8, reason="it took too long")
    scene.page.searcher(0).set(evaluated_version_plus_1=9)  # given up on the way down
    scene.recorder.observe()
    scene.recorder.record_missed(4, reason="no")
    missed = scene.events("evaluation_missed")
    assert [event["details"] for event in missed] == [{"policy_version": 8, "reason": "it took too long"}]


def test_milestones_of_a_long_run_are_bounded_and_the_newest_stay(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "MAX_MILESTONES", 10)
    for version in range(100):
        scene.train_to(version)
    assert len(scene.recorder._milestones) <= 10
    newest = scene.recorder.milestone(96)
    assert newest is not None and newest.policy_version == 96


def test_evaluations_of_an_earlier_attempt_are_not_recorded_again(scene: Scene):
    scene.evaluate(0, 0.2)
    again = ProgressRecorder(
        scene.page, evaluations=scene.layout.evaluations, events=scene.log, num_completions=lambda: 0
    )
    again.observe()
    assert len(scene.events("evaluation")) == 1


def test_summary_says_before_after_gain_and_when_the_target_was_reached(
    scene: Scene, capsys: pytest.CaptureFixture[str]
):
    train(scene)
    scene.record(completions=2000)
    print_summary(scene.layout, config=config(target=0.55))
    text = capsys.readouterr().out
    assert "100.0 s from start to end, of which 90.0 s were training" in text
    assert "40 optimizer steps, 2,000 completions" in text
    assert "before     accuracy 0.200 [0.160, 0.240] (policy version 0, n = 512)" in text
    assert "after      accuracy 0.700 [0.660, 0.740] (policy version 20, n = 512), +50.0 points" in text
    assert "0.55 reached at step 10: 1,000 completions, 10.0 s of training, 20.0 s since the start" in text
    document = json.loads(scene.layout.summary.read_text())
    assert document["target_reached"]["completions"] == 1000 and document["outcome"] == "finished"


def test_summary_says_when_the_target_was_missed(scene: Scene):
    train(scene)
    scene.record()
    lines = list(summary_lines(summarise(scene.layout, config=config(target=0.9))))
    assert lines[-1] == "target     0.9 was not reached"


def test_summary_without_evaluations_has_none(scene: Scene):
    scene.record(completions=5)
    summary = summarise(scene.layout, config=config())
    assert summary.before is None and summary.after is None
    assert json.loads(summary.to_json())["before"] is None
    assert len(list(summary_lines(summary))) == 3


def test_event_lines_are_complete_objects_with_time_and_process(scene: Scene):
    scene.clock.sleep(1.5)
    scene.log.record("child_died", process="searcher-0", pid=4)
    (event,) = scene.events("child_died")
    assert event == {
        "time": "1970-01-01T00:16:41.500+00:00", "elapsed_s": 1.5, "kind": "child_died", "process": "searcher-0",
        "details": {"pid": 4},
    }  # fmt: skip


def test_final_policy_that_was_not_evaluated_is_not_replaced_by_an_older_one(scene: Scene):
    train(scene)
    scene.page.trainer().set(policy_version=40, evaluate_version=40)
    scene.recorder.observe()
    assert not scene.events("evaluation_missed"), "it may still come"
    scene.page.searcher(0).set(evaluated_version_plus_1=41)
    for _ in range(2):
        scene.recorder.observe()
    (missed,) = scene.events("evaluation_missed")
    assert missed["details"]["policy_version"] == 40
    scene.record()
    summary = summarise(scene.layout, config=config())
    assert summary.after is None
    assert "after      not measured: the evaluation of policy version 40 failed" in "\n".join(summary_lines(summary))


def test_evaluation_that_the_next_one_overtook_leaves_an_event(scene: Scene):
    scene.recorder.start_training()
    for version in (10, 20, 30):
        scene.page.trainer().set(policy_version=version, evaluate_version=version)
        scene.recorder.observe()
    scene.evaluate(10, 0.5)
    scene.page.searcher(0).set(evaluated_version_plus_1=11)
    scene.recorder.observe()
    assert not scene.events("evaluation_missed")
    scene.evaluate(30, 0.5)
    scene.page.searcher(0).set(evaluated_version_plus_1=31)
    scene.recorder.observe()
    assert [event["details"]["policy_version"] for event in scene.events("evaluation_missed")] == [20]


def test_summary_of_a_resumed_run_adds_up_its_attempts_and_forgets_what_was_undone(tmp_path: Path):
    first = Scene(tmp_path)
    with first.log:
        first.log.record("run_started", attempt=1)
        train(first)
        first.log.record("run_ended", duration_s=31.0, training_s=20.5, completions=2100)
    (tmp_path / "control").unlink()
    again = Scene(tmp_path)
    with again.log:
        again.log.record("run_started", attempt=2)
        again.pass_time(5.0)
        again.train_to(10)
        again.recorder.start_training()
        again.pass_time(4.0, completions=300)
        again.train_to(15)
        again.evaluate(15, 0.65)
        again.log.record("run_ended", duration_s=100.0, training_s=90.0, completions=300)
        again.record(completions=300, attempt=2)
    summary = summarise(again.layout, config=config(target=0.62))
    assert (summary.cost.duration_s, summary.cost.training_s, summary.cost.completions) == (131.0, 110.5, 2400)
    assert summary.after is not None and summary.after.policy_version == 15, "version 20 is undone"
    assert summary.target_reached == summary.after
    assert (summary.after.completions, summary.after.training_s, summary.after.elapsed_s) == (2400, 24.5, 40.0)
