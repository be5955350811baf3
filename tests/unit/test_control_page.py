import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tbactl.errors import CapacityError, CheckpointError
from tbactl.ipc.control_page import SEARCHER_WORDS, TRAINER_WORDS, ControlPage


@pytest.fixture
def page(tmp_path: Path) -> ControlPage:
    return ControlPage.create(tmp_path / "control", num_trainer_ranks=2, num_searchers=3)


def test_new_page_is_zero_private_and_knows_its_shape(page: ControlPage):
    assert (page.num_trainer_ranks, page.num_searchers) == (2, 3)
    assert set(page.trainer().snapshot().values()) == {0}
    assert page.path.stat().st_mode & 0o777 == 0o600


def test_word_written_in_one_slot_is_seen_in_another_mapping_and_nowhere_else(page: ControlPage):
    other = ControlPage.open(page.path)
    page.searcher(1).set(num_completions=7, f_tokens_per_s=-2.5)
    page.searcher(1).add(num_completions=3)
    assert other.searcher(1).get("num_completions") == 10
    assert other.searcher(1).get_float("f_tokens_per_s") == -2.5
    for slot in (other.supervisor, other.trainer(0), other.trainer(1), other.searcher(0), other.searcher(2)):
        assert set(slot.snapshot().values()) == {0}


def test_every_word_keeps_its_own_value(page: ControlPage):
    for slot, names in ((page.trainer(1), TRAINER_WORDS), (page.searcher(2), SEARCHER_WORDS)):
        values = {name: float(i) + 0.5 if name.startswith("f_") else i for i, name in enumerate(names)}
        slot.set(**values)
        assert slot.snapshot() == values
        slot.reset()
        assert set(slot.snapshot().values()) == {0}


def test_integers_reach_the_whole_range(page: ControlPage):
    page.trainer().set(policy_version=2**64 - 1)
    assert page.trainer().get("policy_version") == 2**64 - 1


def test_read_only_page_cannot_be_written(page: ControlPage):
    watcher = ControlPage.open(page.path, read_only=True)
    page.trainer().set(policy_version=5)
    assert watcher.trainer().get("policy_version") == 5
    with pytest.raises(TypeError):
        watcher.trainer().set(policy_version=6)


def test_unknown_word_and_wrong_kind_are_our_own_mistakes(page: ControlPage):
    with pytest.raises(KeyError):
        page.trainer().get("policy_verison")
    with pytest.raises(AssertionError):
        page.trainer().get("f_loss")
    with pytest.raises(AssertionError):
        page.searcher(3)


def test_page_is_never_created_twice(page: ControlPage):
    with pytest.raises(FileExistsError):
        ControlPage.create(page.path, num_trainer_ranks=1, num_searchers=1)


def test_page_of_a_run_that_ended_is_missing(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        ControlPage.open(tmp_path / "control")


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"x" * 4096])
def test_other_file_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "control"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="control page"):
        ControlPage.open(path)


def test_full_file_system_is_a_capacity_error_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(CapacityError, match="No space left"):
        ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=1)
    assert list(tmp_path.iterdir()) == []


def test_word_written_by_a_process_that_was_killed_survives_it(page: ControlPage):
    code = (
        "import os, sys; from pathlib import Path; from tbactl.ipc.control_page import ControlPage; "
        "ControlPage.open(Path(sys.argv[1])).searcher(0).set(stream_position=42); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(page.path)], check=False, timeout=200)
    assert page.searcher(0).get("stream_position") == 42


def test_words_written_together_are_read_together_or_not_at_all(page: ControlPage):
    code = (
        "import sys, time; from pathlib import Path; from tbactl.ipc.control_page import ControlPage\n"
        "slot = ControlPage.open(Path(sys.argv[1])).searcher(0)\n"
        "until_s, version = time.monotonic() + 240, 0\n"
        "while time.monotonic() < until_s and not slot.get('state'):\n"
        "    version += 1\n"
        "    slot.set_together('sync_edits', fingerprint=version, loaded_version=version)\n"
    )
    slot = page.searcher(0)
    writer = subprocess.Popen([sys.executable, "-c", code, str(page.path)])
    try:
        seen: set[float] = set()
        until_s = time.monotonic() + 120
        while len(seen) < 50 and time.monotonic() < until_s:
            words = slot.get_together("sync_edits", "loaded_version", "fingerprint")
            if words is not None:
                assert words["loaded_version"] == words["fingerprint"]
                seen.add(words["loaded_version"])
    finally:
        slot.set(state=1)
        writer.wait(timeout=60)
    assert len(seen) == 50


def test_words_of_a_writer_that_was_killed_while_it_wrote_are_not_read(page: ControlPage):
    slot = page.searcher(0)
    slot.set_together("sync_edits", loaded_version=3, fingerprint=7)
    slot.add(sync_edits=1)
    slot.set(fingerprint=8)
    assert slot.get_together("sync_edits", "loaded_version", "fingerprint") is None
    slot.reset()
    assert slot.get_together("sync_edits", "loaded_version", "f_logprob_difference") == {
        "loaded_version": 0, "f_logprob_difference": 0.0
    }  # fmt: skip
