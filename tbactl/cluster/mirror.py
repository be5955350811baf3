"""Words of the control page as they are copied from one machine to another."""

from __future__ import annotations

from collections.abc import Collection

from tbactl.cluster.messages import Words
from tbactl.ipc.control_page import SYNC_EDITS, SYNCED

# They say what the trainer can read. On the node they run ahead of the records that are still on their way.
DELIVERED = ("stream_position", "num_groups_written")
# Of the process that the supervisor started, which is the bridge; when it is done is its own to say.
OWN = ("pid", "state")
NOT_COPIED = frozenset((SYNC_EDITS, *SYNCED, *DELIVERED, *OWN))


def moved(words: Words, *, by_ns: int, without: Collection[str] = ()) -> Words:
    """Words on another machine's clock; times that were never set stay so.

    A time before that machine was booted becomes the first moment it knows: it cannot be written down.

    Args:
        words: by name; those that end in `_ns` are times.
        by_ns: that machine's CLOCK_MONOTONIC minus this one's.
        without: words to leave out.
    """
    return {
        name: max(1, value + by_ns) if name.endswith("_ns") and value else value
        for name, value in words.items()
        if name not in without
    }
