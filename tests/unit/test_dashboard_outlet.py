"""What a run prints, before a reader that does not read."""

import io
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

from tbactl.cli.main import main
from tbactl.dashboard import outlet
from tbactl.dashboard.outlet import MAX_LINES, Outlet, say
from tests.support.full_pipe import full_pipe


def writing_to(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", closefd=False)


def wait_for(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def read_to_the_end(descriptor: int, *, end: str) -> str:
    data = b""
    while not data.endswith(end.encode()):
        data += os.read(descriptor, 65_536)
    return data.decode()


@pytest.fixture
def gone_reader() -> Iterator[TextIO]:
    ours, theirs = os.pipe()
    os.close(ours)
    yield writing_to(theirs)
    os.close(theirs)


def test_text_arrives_in_order_before_the_end():
    stream = io.StringIO()
    with Outlet(stream) as out:
        for number in range(100):
            out.write_line(f"line {number}")
        out.write("done")
    assert stream.getvalue() == "".join(f"line {number}\n" for number in range(100)) + "done"


def test_text_of_another_encoding_is_escaped_and_does_not_fail():
    ours, theirs = os.pipe()
    with open(theirs, "w", encoding="ascii") as stream:
        say("50 \N{EURO SIGN}", stream)
    with open(ours, "rb") as file:
        assert file.read() == b"50 \\u20ac\n"


def test_reader_that_does_not_read_is_never_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outlet, "END_WAIT_S", 0.1)
    with full_pipe() as (ours, theirs, num_bytes):
        out = Outlet(writing_to(theirs))
        num_lines = 2 * MAX_LINES
        out.write_line("line 0")
        wait_for(lambda: out._is_writing and not out._waiting)  # the thread waits with the first one
        for number in range(1, num_lines):
            out.write_line(f"line {number}")
        out.write("the end\n")
        assert out.is_behind
        out.close()
        assert out.is_behind and out.error is None
        shown = read_to_the_end(ours, end="the end\n")[num_bytes:].splitlines()
        wait_for(lambda: not out.is_behind)
    num_shown = len(shown) - 2
    assert num_shown == 1 + MAX_LINES
    assert shown[:-2] == [f"line {number}" for number in range(num_shown)]
    assert shown[-2:] == [f"... {num_lines - num_shown} lines left out: the reader was too slow", "the end"]


def test_reader_that_has_gone_is_an_error_that_nobody_gets_unasked(gone_reader: TextIO):
    out = Outlet(gone_reader)
    out.write_line("a line")
    wait_for(lambda: out.error)
    out.write_line("another one")
    out.write("text")
    assert isinstance(out.error, BrokenPipeError) and not out.is_behind
    out.close()


def test_closed_stream_has_no_reader():
    say("text", None)
    stream = io.StringIO()
    stream.close()
    say("text", stream)


def test_failure_has_its_exit_code_when_its_message_cannot_be_written(
    gone_reader: TextIO, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stderr", gone_reader)
    assert main(["run", "no-such-recipe"]) == 3
    assert main(["run", "--no-such-option"]) == 2


def test_failure_has_its_exit_code_when_nobody_reads_its_message(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outlet, "END_WAIT_S", 0.1)
    with full_pipe() as (ours, theirs, num_bytes):
        monkeypatch.setattr("sys.stderr", writing_to(theirs))
        assert main(["run", "no-such-recipe"]) == 3
        text = read_to_the_end(ours, end=".\n")[num_bytes:]
    assert re.match("error: .*no-such-recipe", text)
