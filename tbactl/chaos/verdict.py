"""What became of one fault."""

from __future__ import annotations

from dataclasses import dataclass, field

from tbactl.chaos.faults import Fault


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Filled in while a case runs."""

    fault: Fault
    exit_code: int | None = None
    """Of the run with the fault; negative: the signal that killed it."""
    noticed_s: float | None = None
    """From the strike to the first sign that the run knows."""
    recovered_s: float | None = None
    """To the next optimizer step with the target at work: since the strike or, where the run ended, since the start of
    its resume."""
    is_resumed: bool = False
    """The run ended, and was resumed from its last checkpoint to its last step."""
    num_acknowledged: int = 0
    """Groups that the rings took."""
    num_damaged: int = 0
    """Of these, groups that were found damaged, and counted."""
    num_given_up: int = 0
    """Groups that a searcher could not deliver, and counted."""
    num_lost: int = 0
    """Groups, or prompts, that are missing without a word. Must be 0."""
    num_orphans: int = 0
    num_segments: int = 0
    is_hang: bool = False
    seconds: float = 0.0
    """Of the whole case."""
    problems: list[str] = field(default_factory=list)
    """What is wrong; empty when all is right."""

    @property
    def is_right(self) -> bool:
        """Whether the run ended as it must."""
        return not self.problems

    def noticed_later_than(self, bound_s: float | None) -> str | None:
        """A problem where the fault was noticed, but later than that; None without a bound."""
        if bound_s is None or self.noticed_s is None or self.noticed_s <= bound_s:
            return None
        return f"noticed after {self.noticed_s:.2f} s, later than {bound_s:g} s"

    @property
    def outcome(self) -> str:
        """In a word or two."""
        if self.is_hang:
            return "hang"
        if self.exit_code == 0:
            return "completed"
        return "ended, resumed" if self.is_resumed else "ended"
