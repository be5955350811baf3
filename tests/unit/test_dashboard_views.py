import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from rich.panel import Panel

from tbactl.config.run_record import Outcome
from tbactl.dashboard.curves import reward_panel
from tbactl.dashboard.panels import buffer_panel, events_panel, sample_panel, searchers_panel, trainer_panel
from tbactl.dashboard.state import DashboardState, Sample
from tbactl.dashboard.views import MAX_HEIGHT, MIN_HEIGHT, MIN_WIDTH, dashboard
from tbactl.ipc.control_page import RunState
from tests.support.dashboard_states import make_page, make_record, make_state


def drawn(state: DashboardState, *, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO(), force_terminal=True)
    console.print(dashboard(state, width=width, height=height))
    return console.export_text().rstrip("\n").split("\n")


def text_of(panel: Panel, *, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(panel)
    return console.export_text()


EMPTY = make_state(
    page=make_page(run_state=RunState.STARTING), step=0, eta_s=None, rewards=[], completion_tokens=[], accuracy=[],
    events=[], sample=None,
)  # fmt: skip
STATES = {
    "training": make_state(),
    "starting": EMPTY,
    "one step": make_state(rewards=[(1.0, 0.5)], completion_tokens=[(1.0, 20.0)], accuracy=[], step=1),
    "many searchers": make_state(num_searchers=12),
    "ended without page": make_state(page=None, record=make_record(outcome="finished")),
    "long": make_state(rewards=[(float(i), (i % 7) / 7) for i in range(5000)], step=5000),
    "negative rewards": make_state(rewards=[(float(i), -3.0 + i) for i in range(10)]),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
@pytest.mark.parametrize(
    ("width", "height"), [(80, 23), (80, 40), (100, 30), (140, 34), (200, 60), (MIN_WIDTH, MIN_HEIGHT)]
)
def test_every_state_fits_its_terminal_exactly(state: DashboardState, width: int, height: int):
    lines = drawn(state, width=width, height=height)
    assert len(lines) == min(height, MAX_HEIGHT)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert all(line.rstrip().endswith(("\u256e", "\u2502", "\u256f")) for line in lines[1:])


@pytest.mark.parametrize("width", [80, 140])
def test_nothing_that_matters_is_cut_off_at_the_usual_widths(width: int):
    text = "\n".join(drawn(make_state(), width=width, height=24))
    for part in (
        "gsm8k", "RUNNING", "4:12", "step 23/60", "left 5:31", "0.200 \u2192 0.587", "0.0312", "0.176", "1.23", "2.31",
        "0.0143", "0.0001", "12%", "0.31/s", "v22", "2,360", "3%", "0.09s", "2e-06", "2,048 of 4,096", "p50 1, p95 3",
        "1.20", "#### 72", "53.3", "4,720 tok/s", "killed by SIG",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(
    ("outcome", "page", "shown"),
    [
        ("running", True, "RUNNING"),
        ("running", False, "killed"),
        ("failed", True, "failed"),
        ("finished", False, "finished"),
    ],
)
def test_status_is_the_page_while_it_lives_and_the_record_afterwards(outcome: Outcome, page: bool, shown: str):
    state = make_state(record=make_record(outcome=outcome), page=make_page() if page else None)
    assert state.status == shown
    assert shown in drawn(state, width=80, height=24)[0]


def test_completion_cannot_command_the_terminal_or_the_markup():
    evil = "\x1b[2J\x1b]0;title\x07[bold red]hello[/bold red] \u202eevil\u202c [/] end\r\nnext"
    sample = Sample(step=1, prompt=evil, completion=evil, reward=0.5, policy_version=1, finish_reason="stop")
    console = Console(width=100, file=(output := io.StringIO()), force_terminal=True, color_system=None)
    console.print(sample_panel(make_state(sample=sample), width=100, height=8))
    shown = output.getvalue()
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown and "\r" not in shown
    assert "[bold red]hello[/bold red]" in shown


def test_event_cannot_command_the_terminal():
    from tbactl.dashboard.describe import describe_event

    event = describe_event({"kind": "child_died", "process": "searcher-0", "details": {"how": "\x1b[2J[red]x"}})
    assert event.text == "died: [2J[red]x"
    assert "[red]x" in text_of(events_panel(make_state(events=[event]), width=80, height=5))


def test_alarm_level_difference_and_restarted_searchers_stand_out():
    page = make_page()
    page.searchers[1].update(f_logprob_difference=0.2, attempt=3, num_failed=4, f_ring_fill=0.95)  # type: ignore[attr-defined]
    console = Console(width=100, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(searchers_panel(make_state(page=page), width=100, height=8))
    styled = console.export_text(styles=True)
    assert re.search(r"\x1b\[31m *2e-01", styled) and not re.search(r"\x1b\[31m *2e-06", styled)


def test_searchers_that_do_not_fit_are_counted():
    assert "and 9 more" in text_of(searchers_panel(make_state(num_searchers=12), width=80, height=7))


def test_held_out_points_share_the_plot_only_with_rates():
    rates = text_of(reward_panel(make_state(), width=80, height=12, with_length=False))
    scores = replace(make_state(), rewards=[(1.0, 5.0), (2.0, 7.0)])
    other = text_of(reward_panel(scores, width=80, height=12, with_length=False))
    assert rates.count("\u25cf") == 4 and other.count("\u25cf") == 1  # one of them is the caption's


def test_buffer_says_what_training_waits_for():
    state = make_state(step=0)
    assert "training from 128" in text_of(buffer_panel(state, width=80, height=7))


def test_trainer_before_its_first_step_shows_no_measurements():
    page = make_page()
    page.trainers[0].update(dict.fromkeys([w for w in page.trainers[0] if w.startswith("f_")], 0.0))  # type: ignore[attr-defined]
    console = Console(file=io.StringIO(), width=60)
    console.print(trainer_panel(make_state(page=page), width=60, height=12))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"loss\s+-\s", shown) and re.search(r"pace\s+-\s", shown)
    assert re.search(r"sent\s+v22", shown)


def test_panels_without_a_page_say_so():
    state = make_state(page=None)
    for panel in (trainer_panel, buffer_panel, searchers_panel):
        assert "no process" in text_of(panel(state, width=60, height=7))


def test_picture_can_be_exported():
    console = Console(width=140, height=34, record=True, file=io.StringIO(), force_terminal=True)
    console.print(dashboard(make_state(), width=140, height=34))
    assert console.export_svg(title="tbactl").startswith("<svg")
