import json
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tbactl.chaos.attempt import Attempt
from tbactl.chaos.books import Mark, RingGauge, admitted_prompts, answered_prompts, balance
from tbactl.chaos.expectation import expected
from tbactl.chaos.faults import KINDS, LEFT_OUT, PHASES, PLACES, Fault, places
from tbactl.chaos.report import fault_line, kind_rows, summary, summary_lines
from tbactl.chaos.schedule import schedule
from tbactl.chaos.settings import CaseLayout, case_config
from tbactl.chaos.verdict import Verdict
from tbactl.checkpoints.trainer_state import TrainerState, write_trainer_state
from tbactl.cli.main import main
from tbactl.config.layout import CheckpointLayout
from tbactl.config.loading import run_problems
from tbactl.errors import ConfigError
from tbactl.ipc.codec import encode
from tbactl.ipc.ring import RingReader, RingWriter, create_ring
from tbactl.testing.fake_task import FakeTask
from tests.support.replay_groups import make_group


def fault(**changes) -> Fault:
    values = {"number": 1, "kind": "kill", "phase": "running", "target": "trainer-0", "at_step": 3, "seed": 5}
    return Fault(**(values | changes))


def test_schedule_depends_on_its_seed_alone():
    assert schedule(3, num_faults=50) == schedule(3, num_faults=50)
    assert schedule(3, num_faults=50) == schedule(3, num_faults=80)[:50]
    assert schedule(3, num_faults=50) != schedule(4, num_faults=50)


def test_schedule_takes_kinds_in_turn_and_all_places_of_each():
    faults = schedule(0, num_faults=len(KINDS) * 18)
    for start in range(0, len(faults), len(KINDS)):
        assert {f.kind for f in faults[start : start + len(KINDS)]} == set(KINDS)
    assert {(f.kind, f.role, f.phase) for f in faults} == {(k, *place) for k in KINDS for place in places(k)}


def test_schedule_keeps_to_the_chosen_kinds_and_phases():
    faults = schedule(0, num_faults=40, kinds=("kill", "failed-load"), phases=("draining", "filling"))
    assert {f.kind for f in faults} == {"kill"} and {f.phase for f in faults} == {"draining", "filling"}
    with pytest.raises(ConfigError, match="failed-load strikes in the phases running"):
        schedule(0, num_faults=1, kinds=("failed-load",), phases=("running",))


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_has_an_expectation_and_what_is_left_out_a_reason(kind):
    for role, phase in places(kind):
        target = role if role == "supervisor" else f"{role}-0"
        assert expected(fault(kind=kind, phase=phase, target=target)).exit_code in (0, 4, 5, 6, 7, 130, -9)
    is_whole = all(phases == PHASES for phases in PLACES[kind].values())
    assert is_whole or kind in LEFT_OUT


def test_documentation_lists_every_kind():
    text = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    assert all(f"`{kind}`" in text for kind in KINDS)


def test_wrong_exit_code_or_message_is_a_problem():
    expectation = expected(fault())
    assert expectation.problem_of(5, output="error: trainer-0 (pid 7) died: killed by SIGKILL.") is None
    assert "exit code 0 instead of 5" in (expectation.problem_of(0, output="trainer-0 killed by SIGKILL") or "")
    assert "does not say" in (expectation.problem_of(5, output="error: searcher-1 died") or "")


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_a_case_break_no_rule(tmp_path, kind):
    config = case_config(fault(kind=kind, phase="loading"), layout=CaseLayout(tmp_path))
    assert list(run_problems(config)) == []


def test_history_of_a_checkpoint_leaves_out_what_was_undone():
    done = [(Mark.ADMITTED, 1), (Mark.CHECKPOINT, 3), (Mark.ADMITTED, 2), (Mark.CHECKPOINT, 6), (Mark.ADMITTED, 3)]
    assert admitted_prompts(done, step=6) == {1, 2}
    assert admitted_prompts(done, step=3) == {1}
    resumed = [*done, (Mark.RESUMED, 3), (Mark.ADMITTED, 9), (Mark.CHECKPOINT, 6)]
    assert admitted_prompts(resumed, step=6) == {1, 9}


def test_answered_prompts_are_those_before_each_searchers_position():
    stream = FakeTask().prompts("train", seed=5)
    ids = [next(stream).prompt_id for _ in range(8)]
    assert answered_prompts([4, 7], seed=5) == {ids[0], ids[2], ids[1], ids[3], ids[5]}


def books(tmp_path, *, admitted, num_read, positions):
    layout = CaseLayout(tmp_path)
    ring = tmp_path / "ring"
    create_ring(ring, capacity_bytes=4096)
    with RingWriter.open(ring) as writer, RingReader.open(ring) as reader:
        for _ in range(num_read):
            assert writer.try_write(b"group")
            assert reader.try_read() == b"group"
    checkpoint = CheckpointLayout(tmp_path / "step_000003")
    checkpoint.root.mkdir()
    write_trainer_state(checkpoint, TrainerState(policy_version=3, sampler_rng={}, stream_positions=positions))
    lines = [f"admitted {prompt}" for prompt in admitted] + ["checkpoint 3"]
    layout.trace("trainer-0").write_text("\n".join(lines))
    return balance(layout, checkpoint=checkpoint.root, rings=[RingGauge(ring)], seed=5)


def test_books_balance_and_a_missing_group_or_prompt_is_lost(tmp_path):
    answered = sorted(answered_prompts([4, 3], seed=5))
    for name, changes, num_lost in (
        ("whole", {}, 0),
        ("read and not admitted", {"num_read": 4}, 1),
        ("called answered and never admitted", {"positions": [6, 3]}, 1),
    ):
        (tmp_path / name).mkdir()
        values = {"admitted": answered, "num_read": 3, "positions": [4, 3]} | changes
        assert len(answered) == 3
        assert books(tmp_path / name, **values).num_lost == num_lost, name


def test_record_in_the_hands_of_a_trainer_is_excused_only_where_it_did_not_leave_in_order(tmp_path):
    for name, ends, num_lost in (("died", ["started 0"], 0), ("left", ["started 0", "left 0"], 1)):
        layout = CaseLayout(tmp_path / name)
        layout.root.mkdir()
        create_ring(layout.root / "ring", capacity_bytes=4096)
        with RingWriter.open(layout.root / "ring") as writer, RingReader.open(layout.root / "ring") as reader:
            assert writer.try_write(b"group") and reader.try_read() == b"group"
        layout.trace("trainer-0").write_text("\n".join(ends))
        account = balance(layout, checkpoint=None, rings=[RingGauge(layout.root / "ring")], seed=5)
        assert account.num_lost == num_lost, name


def test_damaged_record_does_not_excuse_another_prompt(tmp_path):
    ids = [prompt.prompt_id for prompt in islice(FakeTask().prompts("train", seed=5), 4)]
    layout = CaseLayout(tmp_path)
    create_ring(tmp_path / "ring", capacity_bytes=2**16)
    gauge = RingGauge(tmp_path / "ring")
    with RingWriter.open(tmp_path / "ring") as writer, RingReader.open(tmp_path / "ring") as reader:
        for prompt in ids[:3:2]:
            assert writer.try_write(encode(make_group(prompt, [7])))
        assert gauge.damage_newest_unread()
        assert [payload is None for payload in (reader.try_read(), reader.try_read())] == [False, True]
    assert gauge.damaged_prompts == {ids[2]} and gauge.num_damaged == 1
    checkpoint = CheckpointLayout(tmp_path / "step_000003")
    checkpoint.root.mkdir()
    layout.trace("trainer-0").write_text(f"admitted {ids[0]}\ncheckpoint 3")
    for positions, num_lost in (([4, 0], 0), ([2, 2], 1)):
        write_trainer_state(checkpoint, TrainerState(policy_version=3, sampler_rng={}, stream_positions=positions))
        account = balance(layout, checkpoint=checkpoint.root, rings=[gauge], seed=5)
        assert account.num_lost == num_lost, positions


def test_damaged_newest_record_is_found_by_the_reader_and_costs_only_itself(tmp_path):
    ring = tmp_path / "ring"
    create_ring(ring, capacity_bytes=4096)
    gauge = RingGauge(ring)
    with RingWriter.open(ring) as writer, RingReader.open(ring) as reader:
        assert not gauge.damage_newest_unread()
        for size in (700, 800, 900):
            while not writer.try_write(b"x" * size):
                reader.try_read()
        assert gauge.damage_newest_unread()
        assert [len(reader.try_read() or b"") for _ in range(3)] == [700, 800, 0]
        assert reader.num_corrupt == gauge.num_damaged == 1


WRITE_UNTIL_TORN = """
import sys
from pathlib import Path
from tbactl.chaos.faults import Fault
from tbactl.chaos.sabotage import install
from tbactl.chaos.settings import CaseLayout
from tbactl.ipc.ring import RingWriter

layout = CaseLayout(Path(sys.argv[1]))
fault = Fault(number=1, kind="torn-record", phase="running", target="searcher-0", at_step=3, seed=5)
install(fault, layout=layout)
with RingWriter.open(Path(sys.argv[2])) as ring:
    assert ring.try_write(b"whole")
    layout.armed.touch()
    ring.try_write(b"torn" * 2 + b"over" * 2)
"""


def test_torn_record_dies_with_half_a_payload_in_the_ring_and_the_next_writer_goes_on(tmp_path):
    ring = tmp_path / "ring"
    create_ring(ring, capacity_bytes=4096)
    result = subprocess.run([sys.executable, "-c", WRITE_UNTIL_TORN, str(tmp_path), str(ring)], stderr=subprocess.PIPE)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert b"torn" * 2 in ring.read_bytes() and b"over" not in ring.read_bytes()
    with RingWriter.open(ring) as writer, RingReader.open(ring) as reader:
        assert writer.try_write(b"after")
        assert [reader.try_read() for _ in range(3)] == [b"whole", b"after", None]
        assert reader.num_corrupt == reader.num_lost == 0


def test_report_counts_names_what_is_wrong_and_gives_median_and_maximum():
    right = Verdict(fault=fault(), exit_code=5, noticed_s=0.1, recovered_s=1.0, is_resumed=True, num_acknowledged=10)
    wrong = Verdict(fault=fault(number=2), exit_code=0, noticed_s=0.5, is_hang=True, num_lost=3, problems=["3 lost"])
    numbers = summary([right, wrong])
    assert (numbers["faults"], numbers["wrong"], numbers["hangs"], numbers["groups_lost"]) == (2, 1, 1, 3)
    assert numbers["noticed_s"] == {"median": 0.3, "max": 0.5}
    assert "ended, resumed" in fault_line(right) and "WRONG" not in fault_line(right)
    assert "WRONG: 3 lost (0002-kill-running-trainer-0)" in fault_line(wrong)
    assert list(summary_lines([right, wrong]))[-1] == "1 WRONG"
    assert list(summary_lines([right]))[-1] == "all as expected"
    assert [row[:3] for row in kind_rows([right, wrong])] == [("kill", 2, 1)]


def test_fault_that_is_noticed_late_is_counted_and_wrong_with_a_bound():
    early, late = Verdict(fault=fault(), noticed_s=0.5), Verdict(fault=fault(number=2), noticed_s=2.5)
    assert summary([early, late])["noticed_late"] == 1
    assert "noticed after 1.50 s (median), 2.50 s at most; 1 later than 2 s" in list(summary_lines([early, late]))
    assert summary([early, late], notice_bound_s=3.0)["noticed_late"] == 0
    assert late.noticed_later_than(None) is None and early.noticed_later_than(2.0) is None
    assert late.noticed_later_than(2.0) == "noticed after 2.50 s, later than 2 s"


def test_bound_for_noticing_reaches_every_case(monkeypatch, tmp_path):
    bounds = []

    class Case:
        def __init__(self, fault, *, notice_bound_s, **rest):
            bounds.append(notice_bound_s)
            self.run = lambda: Verdict(fault=fault)

    monkeypatch.setattr("tbactl.chaos.campaign.Case", Case)
    assert main(["chaos", "--faults", "2", "--notice-bound", "2.5", "--output", str(tmp_path / "out")]) == 0
    assert bounds == [2.5, 2.5]
    assert json.loads((tmp_path / "out" / "chaos.json").read_text())["summary"]["notice_bound_s"] == 2.5


@pytest.mark.parametrize(("exit_code", "limit_s"), [(0, 5.0), (130, 5.0), (-9, 30.0)])
def test_processes_may_outlive_an_orderly_end_for_a_moment_only(monkeypatch, exit_code, limit_s):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + 0.5))
    monkeypatch.setattr("tbactl.chaos.attempt.time", clock)
    monkeypatch.setattr(Attempt, "exit_code", exit_code)
    monkeypatch.setattr(Attempt, "_children", lambda self: [4711])
    assert Attempt.orphans(Attempt.__new__(Attempt)) == [4711]
    assert now[0] == limit_s


def test_keep_without_a_directory_is_refused(capsys):
    assert main(["chaos", "--faults", "1", "--keep"]) == 2
    assert "name it with --output DIR" in capsys.readouterr().err


def test_unknown_kind_and_taken_output_directory_are_refused(tmp_path, capsys):
    assert main(["chaos", "--kinds", "kil"]) == 3
    assert "there is no kind 'kil'" in capsys.readouterr().err
    assert main(["chaos", "--output", str(tmp_path)]) == 3
    assert "exists already" in capsys.readouterr().err


def test_fault_survives_its_file():
    assert msgspec.json.decode(msgspec.json.encode(fault()), type=Fault) == fault()
    assert json.loads(msgspec.json.encode(fault()))["target"] == "trainer-0"
