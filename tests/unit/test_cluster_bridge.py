"""The bridge between a run and a searcher on another node."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tbactl.ipc.codec import CodecError
from tbactl.ipc.control_page import ProcessState, RunState
from tbactl.protocols import ProbeBatch
from tbactl.weight_sync.publisher import publish
from tests.support.bridges import Desk, ScriptedPeer, record, report

EXITED = report(exit_code=0)


def test_records_reach_the_ring_in_order_and_are_acknowledged(tmp_path: Path):
    desk = Desk(tmp_path)
    peer = ScriptedPeer([report(records=[record(0), record(1)]), report(records=[record(2)], exit_code=0)])
    assert desk.bridge(peer).run() == 0
    assert desk.read() == [0, 1, 2]
    assert (desk.slot.get("stream_position"), desk.slot.get("num_groups_written")) == (3, 3)


def test_full_ring_holds_records_back_asks_for_no_more_and_acknowledges_none_of_them(tmp_path: Path):
    desk = Desk(tmp_path, ring_capacity_bytes=4096)
    records = [record(number, num_bytes=1000) for number in range(9)]
    seen: list[tuple[bool, int]] = []

    def on_exchange(request):
        seen.append((request.takes_records, desk.slot.get("stream_position")))
        if len(seen) == 3:
            assert desk.read() == [0, 1, 2]

    reports = [report(records=records, stream_position=9, num_groups_written=9), report(), report()]
    peer = ScriptedPeer([*reports, report(), EXITED], on_exchange=on_exchange)
    desk.page.supervisor.set(run_state=RunState.STOPPING)
    assert desk.bridge(peer).run() == 0
    assert seen == [(True, 0), (False, 3), (False, 3), (False, 6), (False, 6)]
    assert desk.read() == [3, 4, 5]
    assert (desk.slot.get("stream_position"), desk.slot.get("num_groups_written")) == (6, 6)


def test_searcher_that_has_ended_is_waited_for_until_its_records_are_in_the_ring(tmp_path: Path):
    desk = Desk(tmp_path, ring_capacity_bytes=4096)
    read: list[int] = []
    ended = report(records=[record(number, num_bytes=1000) for number in range(5)], exit_code=0)
    peer = ScriptedPeer([ended, EXITED, EXITED, EXITED], on_exchange=lambda request: read.extend(desk.read()))
    assert desk.bridge(peer).run() == 0
    assert [*read, *desk.read()] == [0, 1, 2, 3, 4]


def test_records_that_are_still_on_the_node_are_not_acknowledged_when_nothing_waits_here(tmp_path: Path):
    desk = Desk(tmp_path, ring_capacity_bytes=4096)
    first = report(records=[record(number, num_bytes=1000) for number in range(5)], stream_position=5)
    seen: list[int] = []

    def on_exchange(request):
        seen.append(desk.slot.get("stream_position"))
        desk.read()

    peer = ScriptedPeer([first, report(stream_position=50), report(stream_position=5), EXITED], on_exchange=on_exchange)
    desk.bridge(peer).run()
    assert seen == [0, 3, 5, 5]


def test_prompts_given_up_without_a_record_count_when_nothing_waits(tmp_path: Path):
    desk = Desk(tmp_path)
    peer = ScriptedPeer([report(records=[record(0)], stream_position=4, num_groups_written=1), EXITED])
    desk.bridge(peer).run()
    assert (desk.slot.get("stream_position"), desk.slot.get("num_groups_written")) == (4, 1)


def test_position_never_goes_back_to_words_read_before_the_records(tmp_path: Path):
    desk = Desk(tmp_path)
    desk.bridge(ScriptedPeer([report(records=[record(6)], stream_position=5), EXITED])).run()
    assert desk.slot.get("stream_position") == 7


def test_damaged_record_is_refused_before_the_ring(tmp_path: Path):
    desk = Desk(tmp_path)
    with pytest.raises(CodecError):
        desk.bridge(ScriptedPeer([report(records=[record(0)[:-1]])])).run()
    assert desk.read() == [] and desk.slot.get("stream_position") == 0


def test_slot_shows_the_searcher_but_for_pid_and_end(tmp_path: Path):
    desk = Desk(tmp_path)
    desk.slot.set(pid=5)
    running = report(num_completions=8, f_reward_mean=0.25, attempt=2)
    peer = ScriptedPeer([running, report(state=ProcessState.STOPPED, num_completions=9, exit_code=0)])
    desk.bridge(peer).run()
    assert desk.slot.get("pid") == 5 and desk.slot.get("state") == ProcessState.RUNNING
    assert (desk.slot.get("num_completions"), desk.slot.get("attempt")) == (9, 2)
    assert desk.slot.get_float("f_reward_mean") == 0.25


def test_words_of_a_sync_are_stored_together_and_only_when_they_change(tmp_path: Path):
    desk = Desk(tmp_path)
    synced = {"loaded_version": 3, "fingerprint": 2**64 - 1, "f_sync_seconds": 0.5, "f_logprob_difference": 0.0}
    desk.bridge(ScriptedPeer([report(synced=synced), report(synced=synced), report(synced=synced, exit_code=0)])).run()
    assert desk.slot.get_together("sync_edits", *synced) == synced
    assert desk.slot.get("sync_edits") == 2


@pytest.mark.parametrize(("ended", "told"), [(0, 0), (4, 4), (-signal.SIGKILL, 5)])
def test_exit_code_is_the_searchers_and_5_where_it_was_killed(tmp_path: Path, ended: int, told: int):
    assert Desk(tmp_path).bridge(ScriptedPeer([report(exit_code=ended)])).run() == told


def test_log_files_and_evaluations_arrive_and_evaluations_have_the_time_of_this_machine(tmp_path: Path, capsysbinary):
    desk = Desk(tmp_path)
    desk.page.supervisor.set(started_ns=int(30e9))
    desk.clock.now_s = 100.0
    line = json.dumps({"policy_version": 2, "elapsed_s": 9e9, "wall_s": 1.0}).encode() + b"\n"
    fields = {"log": b"a line\n", "evaluations": line, "files": {"evaluated": b"2"}}
    desk.bridge(ScriptedPeer([report(exit_code=0, **fields)])).run()
    assert b"a line\n" in capsysbinary.readouterr().err
    assert (desk.config.shm.root / "evaluated").read_bytes() == b"2"
    assert json.loads(desk.config.layout.evaluations.read_bytes()) == {
        "policy_version": 2, "elapsed_s": 70.0, "wall_s": 100.0
    }  # fmt: skip


def write_weights(path: Path) -> None:
    path.write_bytes(b"x")


def test_weights_are_sent_until_they_have_arrived_first_those_to_be_evaluated(tmp_path: Path):
    desk = Desk(tmp_path)
    for version in (2, 4):
        publish(
            desk.config.shm.weights,
            version=version,
            write=write_weights,
            probe=ProbeBatch(sequences=()),
            probe_logprobs=(),
        )
    desk.page.trainer().set(evaluate_version=2)
    peer = ScriptedPeer([report(), report(), report(), EXITED])
    peer.arrives_after = 2
    desk.bridge(peer).run()
    assert peer.asked == [2, 2, 2, 4]


def test_stacks_are_asked_for_once(tmp_path: Path):
    peer = ScriptedPeer([report(), report(), EXITED])
    bridge = Desk(tmp_path).bridge(peer)
    bridge.wants_stacks = True
    bridge.run()
    assert [request.wants_stacks for request in peer.requests] == [True, False, False]
