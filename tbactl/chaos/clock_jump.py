"""The wall clock of a process jumps by an hour: what a time server or a daylight-saving mistake does."""

from __future__ import annotations

from tbactl.chaos.settings import CaseLayout
from tbactl.chaos.trigger import Hook, Trigger, wrap
from tbactl.clock import SystemClock

JUMP_S = 3600.0


def jump_when_armed(layout: CaseLayout) -> None:
    """From the trigger on, `SystemClock.wall_s` is an hour late. Looked at whenever the monotonic clock is read."""
    trigger = Trigger(layout)
    offset_s = 0.0

    def late(original: Hook) -> Hook:
        return lambda clock: original(clock) + offset_s

    def looking(original: Hook) -> Hook:
        def monotonic_s(clock: SystemClock) -> float:
            nonlocal offset_s
            if not offset_s and trigger.pull():
                offset_s = -JUMP_S
            return original(clock)

        return monotonic_s

    wrap(SystemClock, "wall_s", late)
    wrap(SystemClock, "monotonic_s", looking)
