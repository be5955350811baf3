"""The other panels, one function each: a state and a size in, a renderable of exactly that size out.

Text of models goes through `printable_line` and into `Text`, which reads no markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tbactl.dashboard.describe import Mood, duration
from tbactl.dashboard.plots import gauge, histogram
from tbactl.dashboard.state import DashboardState
from tbactl.dashboard.style import AGE, FRAME, HELD_OUT, LABEL, REWARD, WRONG, framed
from tbactl.ipc.control_page import NUM_REWARD_BINS, NUM_STALENESS_BINS, ProcessState, TrainerPhase
from tbactl.terminal import printable_line

MOOD_STYLES: Mapping[Mood, str] = {"calm": "default", "good": "green", "warning": "yellow", "bad": "red"}
STATUS_STYLES = {
    "STARTING": "yellow", "RUNNING": "green", "DRAINING": "yellow", "STOPPING": "yellow",
    "finished": "green", "failed": "red", "killed": "red",
}  # fmt: skip
STATE_STYLES = {ProcessState.RUNNING: "green", ProcessState.FAILED: "red", ProcessState.READY: "default"}


def header(state: DashboardState, *, width: int) -> Table:
    """Name, status, step, bar, time left, on one line."""
    max_steps = state.config.trainer.max_steps
    status = state.status
    left = Text.assemble((" tbactl ", "reverse"), " ", (printable_line(state.record.name), "bold"))
    if width >= 120:
        left.append(f"  {state.record.recipe}, {state.record.profile}, attempt {state.record.attempt}", LABEL)
    left.append(f"  {status}", STATUS_STYLES.get(status, "default"))
    left.append(f"  {duration(state.elapsed_s)}")
    right = Text.assemble("step ", (f"{state.step}", "bold"), f"/{max_steps} ")
    time_left = Text.assemble((" left ", LABEL), f"{duration(state.eta_s)} ") if status == "RUNNING" else Text(" ")
    room = width - left.cell_len - right.cell_len - time_left.cell_len - 2
    bar = gauge(state.step / max_steps, width=max(0, min(40, room)))
    full = bar.rstrip("\u2500")
    right.append(full, REWARD)
    right.append(bar[len(full) :], FRAME)
    line = Table.grid(expand=True)
    line.width = width
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(left, Text.assemble(right, time_left))
    return line


def trainer_panel(state: DashboardState, *, width: int, height: int) -> Panel:
    """Phase, pace and the numbers of the last step."""
    words = state.trainer
    if not words:
        return framed(Text("no process", style=LABEL), title="trainer", width=width, height=height)
    of_last_step = [
        ("loss", _number(words["f_loss"])),
        ("residual", _number(words["f_residual"])),
        ("log Z", _number(words["f_log_z"])),
        ("KL", _number(words["f_kl"])),
        ("beta", _number(words["f_beta"])),
        ("lr", f"{words['f_learning_rate']:.2g}"),
        ("grad", _number(words["f_grad_norm"])),
        ("idle", f"{words['f_idle_fraction']:.0%}"),
        ("pace", f"{words['f_steps_per_second']:.3g}/s"),
        ("update", f"{words['f_step_seconds']:.3g}s"),
    ]
    # Zeros would look like measurements.
    pairs = of_last_step if words["f_step_seconds"] else [(name, "-") for name, _ in of_last_step]
    pairs += [
        ("sent", f"v{words['published_version']:.0f}"),
        ("saved", f"{words['checkpoint_step']:.0f}" if words["checkpoint_step"] else "-"),
        ("in", _count(words["num_trajectories_received"])),
        ("used", _count(words["num_trajectories_trained"])),
    ]
    phase = TrainerPhase(int(words["phase"])).name.lower()
    return framed(_pairs(pairs, columns=2), title=f"trainer  {phase}", width=width, height=height)


def searchers_panel(state: DashboardState, *, width: int, height: int) -> Panel:
    """A line for each searcher; as many as fit, the rest as a count."""
    is_wide = width >= 70
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style=LABEL)
    table.add_column("#", min_width=1)
    columns = ["state", "policy", "tok/s", "ring", "sync", "\u0394 logp"]
    columns += ["done", "failed", "idle", "life"] if is_wide else []
    for name in columns:
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    room = height - 3
    searchers = state.searchers
    shown = searchers if len(searchers) <= room else searchers[: max(0, room - 1)]
    for index, words in enumerate(shown):
        cells = _searcher_cells(words, state=state)
        table.add_row(str(index), *(cells if is_wide else cells[:6]))
    parts: list[RenderableType] = [table]
    if len(shown) < len(searchers):
        parts.append(Text(f"and {len(searchers) - len(shown)} more", style=LABEL))
    if not searchers:
        parts = [Text("no process", style=LABEL)]
    total = sum(words["f_tokens_per_s"] for words in searchers)
    title = f"searchers  {total:,.0f} tok/s" if searchers and state.status == "RUNNING" else "searchers"
    return framed(Group(*parts), title=title, width=width, height=height)


def buffer_panel(state: DashboardState, *, width: int, height: int) -> Panel:
    """How full the replay buffer is, and the ages and rewards in it."""
    words = state.trainer
    if not words:
        return framed(Text("no process", style=LABEL), title="replay buffer", width=width, height=height)
    held, capacity = words["buffer_trajectories"], words["buffer_capacity"] or state.config.replay.capacity
    ages = [words[f"staleness_bin_{i}"] for i in range(NUM_STALENESS_BINS)]
    rewards = [words[f"reward_bin_{i}"] for i in range(NUM_REWARD_BINS)]
    bar = gauge(held / capacity, width=max(6, width - 28))
    full = bar.rstrip("\u2500")
    lines = [
        Text.assemble((full, AGE), (bar[len(full) :], FRAME), f" {_count(held)}", (f" of {_count(capacity)}", LABEL)),
        Text.assemble(("prompts ", LABEL), _count(words["buffer_prompts"]), *_reuse(state)),
        Text.assemble(
            ("age     ", LABEL),
            (histogram(ages), AGE),
            (f" 0-{NUM_STALENESS_BINS - 1}+{' steps' if width >= 50 else ''}", LABEL),
        ),
        Text.assemble(
            ("reward  ", LABEL),
            (histogram(rewards), REWARD),
            (f" {words['f_reward_low']:.2g}..{words['f_reward_high']:.2g}", LABEL),
        ),
        Text.assemble(
            ("batches ", LABEL), f"age p50 {words['f_staleness_p50']:.0f}, p95 {words['f_staleness_p95']:.0f}"
        ),
    ]
    return framed(Group(*lines[: height - 2]), title="replay buffer", width=width, height=height)


def sample_panel(state: DashboardState, *, width: int, height: int) -> Panel:
    """The newest sampled completion, as data: nothing in it can reach the terminal as a command."""
    sample = state.sample
    if sample is None:
        return framed(Text("none yet", style=LABEL), title="sample", width=width, height=height)
    prompt = Text(printable_line(sample.prompt), style=LABEL, no_wrap=True, overflow="ellipsis")
    completion = Text(printable_line(sample.completion), overflow="fold")
    room = (width - 4) * (height - 3)
    completion.truncate(room, overflow="ellipsis")
    title = f"sample  step {sample.step}, reward {sample.reward:.2f}, v{sample.policy_version}"
    return framed(Group(prompt, completion), title=title, width=width, height=height)


def events_panel(state: DashboardState, *, width: int, height: int) -> Panel:
    """The last events, newest last."""
    lines = []
    for event in list(state.events)[-(height - 2) :]:
        name = "" if event.process == "supervisor" else f"{event.process} "
        if width < 50 and name:
            role, _, number = event.process.partition("-")
            name = f"{role[:1]}{number} "
        lines.append(
            Text.assemble(
                (f"{duration(event.elapsed_s):>6} ", LABEL),
                (f"{name}{event.text}", MOOD_STYLES[event.mood]),
                no_wrap=True,
                overflow="ellipsis",
            )
        )
    return framed(Group(*lines), title="events", width=width, height=height)


def _searcher_cells(words: Mapping[str, float], *, state: DashboardState) -> list[Text]:
    process_state = ProcessState(int(words["state"]))
    label = "EVAL" if words["evaluating"] else process_state.name
    difference = words["f_logprob_difference"]
    is_off = difference > state.config.sync.max_logprob_difference
    return [
        Text(label, style=HELD_OUT if words["evaluating"] else STATE_STYLES.get(process_state, "yellow")),
        Text(f"v{words['loaded_version']:.0f}"),
        Text(f"{words['f_tokens_per_s']:,.0f}"),
        Text(f"{words['f_ring_fill']:.0%}", style="yellow" if words["f_ring_fill"] > 0.9 else "default"),
        Text(f"{words['f_sync_seconds']:.2f}s" if words["num_syncs"] else "-"),
        Text(f"{difference:.0e}" if words["num_syncs"] else "-", style=WRONG if is_off else "default"),
        Text(_count(words["num_completions"])),
        Text(_count(words["num_failed"]), style="yellow" if words["num_failed"] else "default"),
        Text(f"{words['f_idle_fraction']:.0%}"),
        Text(f"{words['attempt']:.0f}", style="yellow" if words["attempt"] > 1 else "default"),
    ]


def _reuse(state: DashboardState) -> list[tuple[str, str]]:
    """How often a trajectory is trained on; while the buffer fills, what training waits for."""
    if state.step == 0 and state.status == "RUNNING":
        return [(f"  training from {_count(state.config.replay.initial_trajectories)}", LABEL)]
    return [("  reuse ", LABEL), (f"{state.trainer['f_samples_per_insert']:.2f}", "")]


def _pairs(pairs: Sequence[tuple[str, str]], *, columns: int) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(columns):
        grid.add_column(style=LABEL, no_wrap=True)
        grid.add_column(justify="right", no_wrap=True, ratio=1)
    for start in range(0, len(pairs), columns):
        grid.add_row(*(part for pair in pairs[start : start + columns] for part in pair))
    return grid


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.1e}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value < 1e5 else f"{value / 1e3:,.0f}k" if value < 1e7 else f"{value / 1e6:,.0f}M"
