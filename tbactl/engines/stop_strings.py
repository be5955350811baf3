"""Text that ends a completion, for engines that have no such thing of their own. Light: fakes import it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tbactl.types import SamplingParams

# What a decoder shows for the first bytes of a character whose last ones are still to come.
_INCOMPLETE = "\ufffd"


def completes_stop_string(text: str, *, before: str, stop_strings: Sequence[str]) -> bool:
    """Whether the newest token completed one of the strings; what was complete before it does not count.

    Args:
        text: of the completion so far.
        before: the same without its newest token.
        stop_strings: none of them empty.
    """
    num_old = len(before.rstrip(_INCOMPLETE))
    return any(text.find(stop, max(0, num_old - len(stop) + 1)) >= 0 for stop in stop_strings)


def with_stop_strings(sampling: SamplingParams, stop_strings: tuple[str, ...]) -> SamplingParams:
    """The same sampling, with these stop strings unless it has some of its own."""
    return sampling if sampling.stop_strings else dataclasses.replace(sampling, stop_strings=stop_strings)
