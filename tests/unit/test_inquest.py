"""What is said of every process and ring when a run fails."""

import json
from pathlib import Path

import pytest

from tbactl.config.layout import ShmLayout
from tbactl.dashboard.lines import event_line
from tbactl.ipc.control_page import ControlPage, ProcessState
from tbactl.ipc.ring import RingReader, RingWriter, create_ring
from tbactl.ipc.ring_file import RingError, ring_stats
from tbactl.supervision.inquest import Inquest, Sign

NOW_NS = 20_000_000_000


@pytest.fixture
def shm(tmp_path: Path) -> ShmLayout:
    layout = ShmLayout(tmp_path)
    create_ring(layout.ring(0), capacity_bytes=400)
    return layout


def sign(page: ControlPage, *, is_alive: bool = True) -> Sign:
    return Sign.of("searcher-0", page.searcher(0), is_alive=is_alive, now_ns=NOW_NS)


@pytest.fixture
def page(tmp_path: Path) -> ControlPage:
    return ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=1)


def test_sign_says_how_long_ago_a_process_was_heard_of(page: ControlPage):
    assert str(sign(page)) == "searcher-0: not heard of yet"
    page.searcher(0).set(pid=7, state=ProcessState.RUNNING, heartbeat_ns=19_750_000_000, progress_ns=5_000_000_000)
    text = "searcher-0 (pid 7): RUNNING{}, last heartbeat 0.2 s ago, last progress 15.0 s ago"
    assert str(sign(page)) == text.format("")
    assert str(sign(page, is_alive=False)) == text.format(", has ended")


def test_ring_stats_from_outside_are_those_of_its_ends_and_disturb_nobody(shm: ShmLayout):
    with RingWriter.open(shm.ring(0)) as writer, RingReader.open(shm.ring(0)) as reader:
        for size in (30, 40, 50):
            assert writer.try_write(b"x" * size)
        assert reader.try_read() is not None
        assert ring_stats(shm.ring(0)) == writer.stats == reader.stats
        assert reader.try_read() == b"x" * 40


def test_inquest_shows_rings_and_what_cannot_be_read(shm: ShmLayout, page: ControlPage):
    with RingWriter.open(shm.ring(0)) as writer:
        for _ in range(2):
            writer.try_write(b"x" * 84)
    shm.ring(1).write_bytes(b"short")
    inquest = Inquest.hold([sign(page)], shm=shm, num_searchers=3)
    assert str(inquest).splitlines()[1:] == [
        "  | ring-0: 50% full, 2 groups unread of 2 written",
        "  | ring-1: cannot be read",
        "  | ring-2: cannot be read",
    ]
    details = json.loads(json.dumps(inquest.details()))
    assert details["rings"][0]["num_written"] == 2 and details["rings"][1:] == [None, None]
    assert details["processes"][0]["heartbeat_s"] is None


def test_ring_stats_file_too_short_is_no_ring(tmp_path: Path):
    (tmp_path / "r").write_bytes(b"")
    with pytest.raises(RingError, match="too few"):
        ring_stats(tmp_path / "r")


def test_inquest_of_a_damaged_ring_header_hides_no_failure(shm: ShmLayout):
    shm.ring(0).write_bytes(bytes(1024))
    assert str(Inquest.hold([], shm=shm, num_searchers=1)) == "  | ring-0: cannot be read"


def test_event_line_leaves_out_tables():
    line = event_line({"kind": "run_failing", "details": {"error": "it died", "rings": [{"used_bytes": 1}]}})
    assert line == 't=0 event=run_failing process=? error="it died"'
