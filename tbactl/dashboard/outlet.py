"""Text on its way to a terminal or a pipe that may not take it: nobody but a thread of its own waits for the reader.

A terminal that is stopped (Ctrl-S), a stalled connection, a pager that is not scrolled: a write to any of them blocks
until it goes on, and Python repeats it after a signal. A supervisor that waited there would stop beating, and its
children would leave.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from types import TracebackType
from typing import Self, TextIO

# Lines that wait for a reader. What comes on top of them is counted and left out.
MAX_LINES = 1000
# At the end. A reader that takes nothing for so long is not going to see the rest.
END_WAIT_S = 3.0


class Outlet:
    """Takes text at once, and writes it in order from a daemon thread. As much of a text file as rich asks for.

    The thread writes to the descriptor itself: text left in `sys.stdout`'s buffer would be waited for once more when
    the process exits. Once a write has failed (the reader or the terminal is gone) everything is dropped, and `error`
    says why; nothing here raises it.

    Args:
        stream: where the text goes. Nothing else is to write to it meanwhile.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = _descriptor_of(stream)
        self._waiting: deque[str | int] = deque()  # a number: so many lines were left out here
        self._is_writing = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.error: OSError | None = None

    @property
    def encoding(self) -> str:
        """Of the stream."""
        return self._stream.encoding or "utf-8"

    @property
    def is_behind(self) -> bool:
        """Whether the reader has not yet taken all there is: a picture drawn now would only be seen late."""
        return self._is_writing or bool(self._waiting)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Take text that is written whatever the reader does, if there is time."""
        with self._changed:
            if self.error is None and text:
                self._append(text)
        return len(text)

    def write_line(self, line: str) -> None:
        """Take a line, which is left out when `MAX_LINES` wait already; a line in its place says how many were."""
        with self._changed:
            if self.error is not None:
                return
            if len(self._waiting) < MAX_LINES:
                self._append(line + "\n")
            elif isinstance(last := self._waiting[-1], int):
                self._waiting[-1] = last + 1
            else:
                self._waiting.append(1)

    def flush(self) -> None:
        """Do nothing: everything is on its way."""

    def close(self) -> None:
        """Wait until all is written, or has failed, for `END_WAIT_S` at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, text: str) -> None:
        self._waiting.append(text)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="outlet", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _write_all(self) -> None:
        while text := self._next():
            failure: OSError | None = None
            try:
                self._write_now(text)
            except (OSError, ValueError) as error:  # ValueError: a stream that was closed
                failure = error if isinstance(error, OSError) else OSError(str(error))
            with self._changed:
                self._is_writing = False
                if failure is not None:
                    self._waiting.clear()
                    self.error = failure

    def _next(self) -> str:
        """All that waits; empty when no more is to come."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            self._is_writing = bool(self._waiting)
            taken = [_left_out(item) if isinstance(item, int) else item for item in self._waiting]
            self._waiting.clear()
        return "".join(taken)

    def _write_now(self, text: str) -> None:
        if self._descriptor is None:
            self._stream.write(text)
            self._stream.flush()
            return
        rest = memoryview(text.encode(self.encoding, errors="backslashreplace"))
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


def say(text: str, stream: TextIO | None) -> None:
    """Write a line and wait for the reader, but not for long; None (a closed stream) has no reader."""
    if hasattr(stream, "rich_proxied_file"):
        print(text, file=stream)  # above the dashboard, whose own outlet takes it
    elif stream is not None:
        with Outlet(stream) as outlet:
            outlet.write(f"{text}\n")


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):  # it is in memory
        return None


def _left_out(num_lines: int) -> str:
    return f"... {num_lines} line{'' if num_lines == 1 else 's'} left out: the reader was too slow\n"
