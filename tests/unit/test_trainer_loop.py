from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tbactl.config.layout import RunLayout
from tbactl.errors import ChildFailedError
from tbactl.ipc.control_page import ProcessState, RunState, TrainerPhase
from tbactl.testing.fake_learner import FakeLearner
from tbactl.testing.fake_policy import FakePolicy
from tbactl.weight_sync.published import published_versions
from tests.support.documented_metrics import documented_metrics
from tests.support.scripted_run import SYNC_MODE, ScriptedRun, trainer_state


def policy_of(checkpoint):
    return FakePolicy.initial(checkpoint / "policy").logits


def test_loop_async_run_trains_publishes_saves_and_says_finished(tmp_path):
    run = ScriptedRun(tmp_path)
    run.run()

    assert run.word("policy_version") == 6
    assert run.word("finished") == 1
    assert run.word("phase") == TrainerPhase.DONE
    assert run.word("published_version") == 6
    assert published_versions(run.config.shm.weights) == [4, 6]
    assert [path.name for path in sorted(run.config.layout.checkpoints.glob("step_*"))] == [
        "step_000002",
        "step_000004",
        "step_000006",
    ]
    assert run.config.layout.latest_checkpoint.resolve() == run.checkpoint(6)
    assert run.pulse.states == [ProcessState.READY, ProcessState.RUNNING]
    assert [line["step"] for line in run.metrics()] == [1, 2, 3, 4, 5, 6]


def test_loop_training_waits_for_the_initial_trajectories(tmp_path):
    run = ScriptedRun(tmp_path, replay={"initial_trajectories": 100})
    run.run()

    first = run.metrics()[0]["metrics"]
    assert first["intake/trajectories/total"] >= 100
    assert first["trainer/wait_s/sum"] >= 0


def test_loop_policy_learns_on_rewarded_letter(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 30, "options": {"learning_rate": 20.0}}, checkpoint={"period": 0})
    run.run()
    rewards = [line["metrics"]["objective/reward/mean"] for line in run.metrics()]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.05


def test_loop_control_page_shows_buffer_and_metrics(tmp_path):
    run = ScriptedRun(tmp_path)
    run.run()
    words = run.page.trainer().snapshot()

    assert words["buffer_trajectories"] == sum(words[f"staleness_bin_{i}"] for i in range(16))
    assert words["buffer_trajectories"] == sum(words[f"reward_bin_{i}"] for i in range(10))
    assert words["buffer_capacity"] == 400
    assert words["num_trajectories_trained"] == 6 * 16
    assert words["num_trajectories_received"] >= 32
    assert words["f_beta"] == run.config.run.objective.beta
    assert words["f_reward_mean"] == run.metrics()[-1]["metrics"]["objective/reward/mean"]
    assert words["f_completion_tokens"] > 0
    assert words["checkpoint_step"] == 6


@pytest.mark.fault("R-10")
@pytest.mark.parametrize("mode", [{}, SYNC_MODE], ids=["async", "sync"])
def test_loop_same_seed_gives_the_same_bits(tmp_path, mode):
    runs = [ScriptedRun(tmp_path / name, **mode) for name in "ab"]
    for run in runs:
        run.run()
    assert np.array_equal(policy_of(runs[0].checkpoint(6)), policy_of(runs[1].checkpoint(6)))
    assert trainer_state(runs[0].checkpoint(6)) == trainer_state(runs[1].checkpoint(6))


def test_loop_another_seed_gives_another_policy(tmp_path):
    policies = []
    for seed in (0, 1):
        run = ScriptedRun(tmp_path / str(seed), seed=seed)
        run.run()
        policies.append(policy_of(run.checkpoint(6)))
    assert not np.array_equal(*policies)


# Mode sync -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("I-06", "I-88")
def test_loop_sync_mode_trains_on_exactly_the_granted_groups_on_policy(tmp_path):
    run = ScriptedRun(tmp_path, **SYNC_MODE)
    run.run()

    assert run.word("granted_groups") == 6 * 4
    for number, line in enumerate(run.metrics(), start=1):
        metrics = line["metrics"]
        assert metrics["replay/staleness/max"] == 0
        assert metrics["intake/groups/total"] == number * 4
        assert metrics["replay/samples_per_insert/value"] == 1.0


def record_batches(run, batches):
    update = run.learner.update

    def recorded(groups, **kwargs):
        batches.append([group.prompt_id for group in groups])
        return update(groups, **kwargs)

    run.learner.update = recorded


def test_loop_sync_mode_depends_on_prompts_not_on_who_was_faster(tmp_path):
    fair, unfair = ScriptedRun(tmp_path / "a", **SYNC_MODE), ScriptedRun(tmp_path / "b", **SYNC_MODE)
    turns = iter(range(10**9))

    def hold_back_the_first():
        unfair.searchers[0].is_silent = next(turns) % 5 != 0

    unfair.on_turn = hold_back_the_first
    batches = {"fair": [], "unfair": []}
    for name, run in (("fair", fair), ("unfair", unfair)):
        record_batches(run, batches[name])
    fair.run()
    unfair.run()
    assert batches["fair"] == batches["unfair"] == [[4 * turn + i for i in range(4)] for turn in range(6)]
    assert np.array_equal(policy_of(fair.checkpoint(6)), policy_of(unfair.checkpoint(6)))


@pytest.mark.fault("I-49", "I-56", "I-58", "R-10")
@pytest.mark.parametrize("stop_at", [2, 4])
def test_loop_sync_resume_equals_uninterrupted_bit_for_bit(tmp_path, stop_at):
    whole = ScriptedRun(tmp_path / "whole", **SYNC_MODE)
    whole.run()
    first = ScriptedRun(tmp_path / "first", **SYNC_MODE)
    first.ask(RunState.DRAINING, at_version=stop_at)
    first.run()
    assert first.word("finished") == 0
    second = ScriptedRun(tmp_path / "second", resume=first.config.layout.latest_checkpoint, **SYNC_MODE)
    second.run()

    assert np.array_equal(policy_of(whole.checkpoint(6)), policy_of(second.checkpoint(6)))
    ours, theirs = trainer_state(whole.checkpoint(6)), trainer_state(second.checkpoint(6))
    assert ours | {"training_s": 0.0} == theirs | {"training_s": 0.0}
    for name in ("replay/buffer.json", "replay/trajectories.msgpack", "learner/fake_learner.safetensors"):
        assert (whole.checkpoint(6) / name).read_bytes() == (second.checkpoint(6) / name).read_bytes(), name
    assert [line["step"] for line in second.metrics()] == list(range(stop_at + 1, 7))


def test_loop_sync_mode_group_that_arrives_again_in_a_later_turn_is_left_out(tmp_path):
    run = ScriptedRun(tmp_path, **SYNC_MODE)
    batches = []
    record_batches(run, batches)
    repeated = []

    def repeat_once():
        # As after a death between writing a record and moving the cursor.
        if run.word("policy_version") == 2 and not repeated:
            run.searchers[1].position -= 2
            repeated.append(run.searchers[1].position)

    run.on_turn = repeat_once
    run.run()
    assert repeated == [7]
    assert batches == [[4 * turn + i for i in range(4)] for turn in range(6)]
    assert run.metrics()[-1]["metrics"]["intake/groups/total"] == 6 * 4


def test_loop_sync_mode_takes_turns_until_each_rank_has_a_group(tmp_path):
    def of_one_rank(config):
        trainer = config.run.trainer.model_copy(update={"num_ranks": 1})
        return FakeLearner(config.model_copy(update={"run": config.run.model_copy(update={"trainer": trainer})}))

    run = ScriptedRun(tmp_path, learner=of_one_rank, trainer={"num_ranks": 2, "max_steps": 2}, **SYNC_MODE)
    for searcher in run.searchers:
        make_group = searcher._group

        def mostly_failed(make_group=make_group):
            group = make_group()
            return group if group.prompt_id % 4 == 0 else replace(group, trajectories=())

        searcher._group = mostly_failed
    batches = []
    record_batches(run, batches)
    run.run()
    assert batches == [[0, 4], [8, 12]]


# Ending, resuming ----------------------------------------------------------------------------------------------------


def test_loop_draining_writes_a_checkpoint_of_the_last_finished_step(tmp_path):
    run = ScriptedRun(tmp_path, checkpoint={"period": 0})
    run.ask(RunState.DRAINING, at_version=3)
    run.run()

    assert run.config.layout.latest_checkpoint.resolve().name == "step_000003"
    assert trainer_state(run.checkpoint(3))["policy_version"] == 3
    assert run.word("finished") == 0


def test_loop_tempered_target_reaches_the_learner_and_the_metrics(tmp_path):
    objective = {
        "beta": 0.1,
        "target_temperature": 2.0,
        "target_temperature_final": 1.0,
        "target_temperature_steps": 4,
        "reference_temperature": 1.25,
    }
    run = ScriptedRun(tmp_path, objective=objective, checkpoint={"period": 0})
    update, targets = run.learner.update, []

    def recorded(groups, *, beta, reference_exponent, should_abort):
        targets.append((beta, reference_exponent))
        return update(groups, beta=beta, reference_exponent=reference_exponent, should_abort=should_abort)

    run.learner.update = recorded
    run.run()
    temperatures = [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]
    assert np.array(targets) == pytest.approx(np.array([(0.1 * t, 0.8 / t) for t in temperatures]))
    lines = [line["metrics"] for line in run.metrics()]
    assert [line["objective/target_temperature/value"] for line in lines] == temperatures
    assert {line["objective/reference_temperature/value"] for line in lines} == {1.25}
    assert {line["objective/beta/value"] for line in lines} == {0.1}
    assert lines[0].keys() <= documented_metrics()


def test_loop_draining_inside_an_update_leaves_the_step_undone(tmp_path):
    run = ScriptedRun(tmp_path, checkpoint={"period": 0})
    update = run.learner.update

    def interrupted(groups, *, should_abort, **target):
        if run.word("policy_version") == 2:
            run.page.supervisor.set(run_state=RunState.DRAINING)
        return update(groups, should_abort=should_abort, **target)

    run.learner.update = interrupted
    before = []
    commit = run.learner.save
    run.learner.save = lambda directory: (before.append(run.word("policy_version")), commit(directory))
    run.run()

    assert before == [2]
    assert trainer_state(run.checkpoint(2))["policy_version"] == 2


@pytest.mark.fault("I-50")
def test_loop_batch_that_was_aborted_is_drawn_again_after_the_resume(tmp_path):
    batches = []

    def scripted(name, **kwargs):
        run = ScriptedRun(tmp_path / name, checkpoint={"period": 0}, **kwargs)
        update = run.learner.update

        def recorded(groups, **kwargs):
            batches.append(groups)
            for searcher in run.searchers:
                searcher.is_silent = name == "first" and len(batches) == 3
            if len(batches) == 3:
                run.page.supervisor.set(run_state=RunState.DRAINING)
            return update(groups, **kwargs)

        run.learner.update = recorded
        return run

    scripted("first").run()
    second = scripted("second", resume=RunLayout(tmp_path / "first" / "run").latest_checkpoint)
    for searcher in second.searchers:
        searcher.is_silent = True
    second.run()
    assert len(batches) == 3 + 4
    assert batches[3] == batches[2]


def test_loop_stopping_leaves_at_once_without_a_checkpoint(tmp_path):
    run = ScriptedRun(tmp_path, checkpoint={"period": 0})
    run.ask(RunState.STOPPING, at_version=2)
    run.run()
    assert not run.config.layout.checkpoints.exists()


@pytest.mark.fault("I-49")
def test_loop_async_resume_continues_buffer_counters_and_publishes_first(tmp_path):
    first = ScriptedRun(tmp_path / "first")
    first.ask(RunState.DRAINING, at_version=4)
    first.run()
    state = trainer_state(first.checkpoint(4))
    second = ScriptedRun(tmp_path / "second", resume=first.checkpoint(4))
    published = []
    second.on_turn = lambda: published.append(second.word("published_version"))
    second.run()

    assert next(version for version in published if version) == 4
    assert [line["step"] for line in second.metrics()] == [5, 6]
    assert (
        second.metrics()[0]["metrics"]["trainer/trajectories/total"] == state["counters"]["trajectories_trained"] + 16
    )
    held = json.loads((first.checkpoint(4) / "replay" / "buffer.json").read_text())["num_trajectories"]
    assert second.metrics()[0]["metrics"]["replay/trajectories/value"] >= held > 32


@pytest.mark.fault("I-50", "I-52")
def test_loop_resume_skips_no_prompt_and_repeats_none(tmp_path):
    first = ScriptedRun(tmp_path / "first")
    first.ask(RunState.DRAINING, at_version=3)
    first.run()
    second = ScriptedRun(tmp_path / "second", resume=first.config.layout.latest_checkpoint)
    second.run()

    before, after = (trainer_state(run.config.layout.latest_checkpoint) for run in (first, second))
    held = json.loads((second.checkpoint(6) / "replay" / "buffer.json").read_text())
    prompts = {prompt for _, _, members in held["recency"] for prompt in members}
    for index, position in enumerate(after["stream_positions"]):
        assert position > before["stream_positions"][index] > index
        own = {prompt for prompt in prompts if prompt % 2 == index}
        assert own == set(range(index, position, 2))
    assert after["counters"]["groups_received"] == len(prompts)


def test_loop_resume_at_the_last_step_is_finished_at_once(tmp_path):
    first = ScriptedRun(tmp_path / "first")
    first.run()
    second = ScriptedRun(tmp_path / "second", resume=first.checkpoint(6))
    second.run()
    assert second.word("finished") == 1
    assert not second.metrics()


# Searchers that fail -------------------------------------------------------------------------------------------------


@pytest.mark.fault("I-01", "I-04")
@pytest.mark.parametrize("mode", [{}, SYNC_MODE], ids=["async", "sync"])
def test_loop_silent_searchers_end_the_wait_and_are_named(tmp_path, mode):
    run = ScriptedRun(tmp_path, **mode)
    for searcher in run.searchers:
        searcher.is_silent = True
    with pytest.raises(
        ChildFailedError, match=r"for 3\d s .* no searcher has given a sign of life: searcher-0 .*searcher-1"
    ):
        run.run()


@pytest.mark.fault("I-02", "R-07")
def test_loop_searcher_that_does_not_load_is_one_alarm_and_blocks_nobody(tmp_path):
    run = ScriptedRun(tmp_path, supervision={"acknowledge_timeout_s": 5.0})
    run.searchers[1].takes_weights = False
    update = run.learner.update

    def slow(groups, **kwargs):
        run.clock.sleep(4.0)
        return update(groups, **kwargs)

    run.learner.update = slow
    run.run()

    assert run.word("policy_version") == 6
    assert run.word("num_alarms") == 1
    assert [line["metrics"]["sync/alarms/total"] for line in run.metrics()] == [0, 0, 0, 1, 1, 1]
    assert run.metrics()[-1]["metrics"]["sync/version_lag/max"] == 6


def test_loop_logprob_difference_above_the_limit_is_an_alarm(tmp_path):
    run = ScriptedRun(tmp_path)

    def report():
        if run.page.searcher(0).get("loaded_version") == 2:
            run.page.searcher(0).set(f_logprob_difference=2.9)

    run.on_turn = report
    run.run()
    assert run.word("num_alarms") == 2  # as reported for version 2, and again for version 4
    assert max(line["metrics"]["searcher/logprob_difference/max"] for line in run.metrics()) == 2.9


def test_loop_damaged_record_is_counted_and_left_out(tmp_path):
    run = ScriptedRun(tmp_path)
    run.searchers[0]._ring.try_write(b"TBAC\x01\x01 no group")
    run.run()
    assert run.metrics()[-1]["metrics"]["intake/damaged_records/total"] == 1


def test_loop_evaluation_is_asked_for_at_its_period_and_at_the_end(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 7}, evaluation={"num_prompts": 5, "period": 4})
    asked = []
    run.on_turn = lambda: asked.append(run.word("evaluate_version"))
    run.run()
    assert sorted({*asked, run.word("evaluate_version")}) == [0, 4, 7]


def test_loop_imports_no_torch():
    code = "import sys, tbactl.trainer.loop, tbactl.trainer.session; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
