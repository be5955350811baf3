import json
from pathlib import Path
from typing import Any

import pytest

from tbactl.config.layout import RunLayout
from tbactl.dashboard import state as dashboard_state
from tbactl.dashboard.describe import SENTENCES, describe_event, duration
from tbactl.dashboard.lines import LineSource, event_line, step_line
from tbactl.dashboard.state import Gatherer, PageSnapshot, page_snapshot
from tbactl.dashboard.tail import JsonlTail
from tbactl.ipc.control_page import ControlPage
from tests.support.dashboard_states import make_config, make_page, make_record


def append(path: Path, *values: Any) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(value) + "\n" for value in values)


def metrics_line(step: int, *, time_s: float, reward: float = 0.5) -> dict[str, Any]:
    metrics = {"intake/reward/mean": reward, "objective/loss/mean": 0.25}
    return {"step": step, "time_s": time_s, "wall_s": 0.0, "metrics": metrics}


def test_tail_reads_each_line_once_and_leaves_an_unfinished_one(tmp_path: Path):
    path = tmp_path / "f.jsonl"
    tail = JsonlTail(path)
    assert tail.read_new() == []
    append(path, {"a": 1}, {"a": 2})
    assert tail.read_new() == [{"a": 1}, {"a": 2}]
    with path.open("a") as file:
        file.write('{"a": ')
        file.flush()
        assert tail.read_new() == []
        file.write("3}\n")
    assert tail.read_new() == [{"a": 3}] and tail.num_damaged == 0


def test_tail_counts_damaged_lines_and_goes_on(tmp_path: Path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a": 1}\nnot json\n[1]\n\xff\xfe\n\n{"a": 2}\n')
    tail = JsonlTail(path)
    assert tail.read_new() == [{"a": 1}, {"a": 2}] and tail.num_damaged == 3


def test_tail_from_the_end_sees_only_what_is_new(tmp_path: Path):
    path = tmp_path / "f.jsonl"
    append(path, {"a": 1})
    tail = JsonlTail(path, from_end=True)
    append(path, {"a": 2})
    assert tail.read_new() == [{"a": 2}]


def test_tail_starts_again_when_the_file_is_replaced_by_a_shorter_one(tmp_path: Path):
    path = tmp_path / "f.jsonl"
    append(path, {"a": 1}, {"a": 2})
    tail = JsonlTail(path)
    tail.read_new()
    path.write_text('{"a": 3}\n')
    assert tail.read_new() == [{"a": 3}]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


def test_gatherer_collects_curves_points_events_and_the_newest_sample(layout: RunLayout):
    append(layout.metrics, metrics_line(1, time_s=1.0, reward=0.1), metrics_line(2, time_s=3.0, reward=0.2))
    evaluation = {"policy_version": 2, "num_prompts": 5, "metrics": {"accuracy": 0.4, "other": 1}, "intervals": {}}
    append(layout.evaluations, evaluation)
    append(layout.events, {"elapsed_s": 1.0, "kind": "checkpoint", "process": "trainer-0", "details": {"step": 2}})
    sample = {"prompt": "p", "completion": "c", "reward": 1.0, "version": 1, "finish_reason": "stop"}
    append(layout.trajectories, {"step": 1, **sample}, {"step": 2, **sample})
    gatherer = Gatherer(layout, config=make_config())
    state = gatherer.gather(make_record(), page=None, elapsed_s=9.0)
    assert state.rewards == [(1.0, 0.1), (2.0, 0.2)] and state.step == 2
    assert state.eta_s == pytest.approx(2.0 * 58)
    assert [(p.metric, p.value, p.interval) for p in state.accuracy] == [("accuracy", 0.4, None)]
    assert state.events[0].text == "checkpoint at step 2"
    assert state.sample is not None and state.sample.step == 2
    append(layout.metrics, metrics_line(3, time_s=4.0))
    later = gatherer.gather(make_record(), page=make_page(), elapsed_s=10.0)
    assert len(later.rewards) == 3 and later.step == 23


def test_steps_done_again_after_a_resume_replace_the_first_ones(layout: RunLayout):
    append(layout.metrics, *(metrics_line(step, time_s=step, reward=0.1) for step in range(1, 6)))
    append(layout.metrics, metrics_line(4, time_s=4.0, reward=0.9))
    state = Gatherer(layout, config=make_config()).gather(make_record(), page=None, elapsed_s=0.0)
    assert state.rewards == [(1.0, 0.1), (2.0, 0.1), (3.0, 0.1), (4.0, 0.9)]


def test_gatherer_remembers_so_many_steps_only_and_the_pace_stays(layout: RunLayout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dashboard_state, "MAX_STEPS", 40)
    append(layout.metrics, *(metrics_line(step, time_s=2.0 * step, reward=step) for step in range(1, 50)))
    state = Gatherer(layout, config=make_config()).gather(make_record(), page=None, elapsed_s=0.0)
    assert len(state.rewards) <= 40 and state.metrics["objective/loss/mean"] == 0.25
    assert [step for step, _ in state.rewards][-11:] == list(range(39, 50)) and state.rewards[0][0] <= 3
    assert state.eta_s == pytest.approx(2.0 * (60 - 49))


@pytest.mark.parametrize(("mode", "period", "num_left"), [("async", 10, 1), ("sync", 10, 3), ("sync", 0, 1)])
def test_time_left_counts_the_evaluations_that_hold_up_the_run(
    layout: RunLayout, mode: str, period: int, num_left: int
):
    # 60 steps of 1 s, 35 done; in sync mode step 31 held an evaluation.
    held_s = 20.0 if mode == "sync" else 0.0
    lines = [metrics_line(step, time_s=step + (held_s if step > 30 else 0.0)) for step in range(1, 36)]
    append(layout.metrics, *lines)
    append(layout.evaluations, {"policy_version": 30, "seconds": 20.0, "metrics": {"accuracy": 0.4}})
    config = make_config()
    evaluation = config.evaluation.model_copy(update={"num_prompts": 100, "period": period})
    config = config.model_copy(update={"mode": mode, "evaluation": evaluation})
    state = Gatherer(layout, config=config).gather(make_record(), page=None, elapsed_s=0.0)
    assert state.eta_s == pytest.approx(25.0 + 20.0 * num_left)


def test_lines_of_an_attempt_leave_out_those_before_it(layout: RunLayout):
    for attempt in (1, 2):
        append(layout.events, {"kind": "run_started", "process": "supervisor", "details": {"attempt": attempt}})
        append(layout.events, {"kind": "resumed", "process": "supervisor", "details": {"checkpoint": str(attempt)}})
    append(layout.metrics, metrics_line(1, time_s=1.0))
    source = LineSource(layout, config=make_config(), attempt=2)
    assert [line.rpartition(" ")[2] for line in source.new_lines()] == ["attempt=2", "checkpoint=2"]
    append(layout.metrics, metrics_line(2, time_s=2.0))
    assert [line.split()[0] for line in source.new_lines()] == ["step=2/60"]
    assert len(list(LineSource(layout, config=make_config()).new_lines())) == 6


def test_lines_of_a_whole_run_come_in_the_order_of_time(layout: RunLayout):
    times = ["2026-01-01T00:00:01+00:00", "2026-01-01T00:00:05+00:00"]
    layout.events.write_text(
        "".join(json.dumps({"kind": "k", "time": time, "elapsed_s": 0.0}) + "\n" for time in times)
    )
    step = {"step": 1, "time_s": 1.0, "wall_time": 1767225603.0, "metrics": {}}
    layout.metrics.write_text(json.dumps(step) + "\n")
    lines = list(LineSource(layout, config=make_config()).new_lines())
    assert [line.partition("=")[0] for line in lines] == ["t", "step", "t"]


def test_run_without_files_has_an_empty_state(layout: RunLayout):
    state = Gatherer(layout, config=make_config()).gather(make_record(), page=None, elapsed_s=0.0)
    assert (state.step, state.eta_s, state.rewards, state.sample) == (0, None, [], None)


def test_page_snapshot_survives_json(tmp_path: Path):
    page = ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=2)
    page.searcher(1).set(f_tokens_per_s=12.5, num_completions=3)
    snapshot = page_snapshot(page)
    again = PageSnapshot.from_json(snapshot.to_json())
    assert again == snapshot and again.searchers[1]["f_tokens_per_s"] == 12.5


@pytest.mark.parametrize("kind", [*SENTENCES, "something_new"])
def test_damaged_event_of_any_kind_is_shown_as_it_is(kind: str):
    shown = describe_event({"kind": kind, "details": {"odd": 1}})
    assert shown.kind == kind and shown.text


def test_event_without_anything_is_shown():
    assert describe_event({}).text == "?"


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0, "0:00"), (65, "1:05"), (3723.9, "1:02:03")])
def test_durations_are_short(seconds: float | None, text: str):
    assert duration(seconds) == text


def test_plain_lines_are_key_value_and_safe():
    line = step_line(metrics_line(3, time_s=1.5), max_steps=60)
    assert line == "step=3/60 time_s=1.5 reward=0.5 loss=0.25"
    event = {
        "elapsed_s": 1.25,
        "kind": "child_died",
        "process": "searcher-0",
        "details": {"pid": 4, "how": "a \x1b[2J"},
    }
    assert event_line(event) == 't=1.25 event=child_died process=searcher-0 pid=4 how="a \\u001b[2J"'
    assert step_line({}, max_steps=1) == "step=?/1 time_s=0"
