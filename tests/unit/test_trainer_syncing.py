from __future__ import annotations

import numpy as np
import pytest
import xxhash

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.clock import FakeClock
from tbactl.config.sections import SyncSection
from tbactl.errors import ChildFailedError
from tbactl.ipc.control_page import ControlPage, ProcessState
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.snapshot import rng_state_to_json
from tbactl.trainer.syncing import Syncing
from tests.support.replay_groups import make_group

# What a searcher shows of the weights below.
FINGERPRINT = int(xxhash.xxh3_128_hexdigest(b"weights")[:16], 16)


class ProbedLearner:
    """Notes what it is asked to score."""

    def __init__(self):
        self.probe = None

    def write_weights(self, path):
        path.write_bytes(b"weights")

    def probe_logprobs(self, probe):
        self.probe = probe
        return [tuple(0.0 for _ in ids[length:]) for ids, length in probe.sequences]


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "weights").mkdir()
    page = ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=1)
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=10)
    state = TrainerState(sampler_rng=rng_state_to_json(np.random.default_rng(0)), stream_positions=[0])
    learner, clock = ProbedLearner(), FakeClock()
    syncing = Syncing(
        SyncSection(probe_sequences=2),
        acknowledge_timeout_s=10.0,
        page=page,
        weights_directory=tmp_path / "weights",
        learner=learner,
        buffer=buffer,
        state=state,
        clock=clock,
        reward_metrics=("toxicity", "success"),
    )
    return syncing, learner, buffer, state, page, clock


@pytest.mark.fault("I-28")
def test_publish_probes_with_the_tokens_that_were_generated(parts):
    syncing, learner, buffer, state, page, _ = parts
    for prompt_id in (3, 4, 5):
        buffer.insert(make_group(prompt_id, [1000, 2000]))
    state.policy_version = 1
    syncing.publish()
    assert learner.probe.sequences == (((4, 2000), 1), ((5, 2000), 1))
    assert page.trainer().get("published_version") == 1


def test_publish_with_an_empty_buffer_has_nothing_to_probe(parts):
    syncing, learner, *_ = parts
    syncing.publish()
    assert learner.probe is None


def test_observe_alarms_once_about_a_searcher_that_does_not_load(parts):
    syncing, _, _, state, page, clock = parts
    page.searcher(0).set(state=ProcessState.RUNNING)
    state.policy_version = 1
    syncing.publish()
    clock.sleep(5)
    assert syncing.observe()["sync/alarms/total"] == 0
    clock.sleep(6)
    assert syncing.observe()["sync/alarms/total"] == 1
    assert syncing.observe()["sync/alarms/total"] == 1
    assert page.trainer().get("num_alarms") == 1


def test_observe_alarms_about_a_searcher_whose_logprobs_differ(parts):
    syncing, _, _, state, page, _ = parts
    state.policy_version = 1
    syncing.publish()
    page.searcher(0).set(
        state=ProcessState.RUNNING, fingerprint=FINGERPRINT, loaded_version=1, f_logprob_difference=0.5
    )
    metrics = syncing.observe()
    assert metrics["sync/alarms/total"] == 1 and metrics["searcher/logprob_difference/max"] == 0.5
    page.searcher(0).set(f_logprob_difference=float("nan"), loaded_version=2)
    assert syncing.observe()["sync/alarms/total"] == 2


def test_observe_leaves_a_searcher_that_is_noting_new_weights_for_the_next_look(parts):
    syncing, _, _, state, page, _ = parts
    state.policy_version = 1
    syncing.publish()
    slot = page.searcher(0)
    slot.add(sync_edits=1)
    slot.set(state=ProcessState.RUNNING, fingerprint=FINGERPRINT + 1, loaded_version=1)
    assert syncing.observe()["sync/alarms/total"] == 0
    slot.set(fingerprint=FINGERPRINT)
    slot.add(sync_edits=1)
    assert syncing.observe()["sync/alarms/total"] == 0
    slot.set_together("sync_edits", fingerprint=FINGERPRINT + 1, loaded_version=0)
    slot.set_together("sync_edits", fingerprint=FINGERPRINT + 1, loaded_version=1)
    assert syncing.observe()["sync/fingerprint_mismatches/total"] == 0, "a version is looked at once"


def test_publish_without_probe_sequences_has_nothing_to_probe(parts):
    syncing, learner, buffer, *_ = parts
    syncing._section = SyncSection(probe_sequences=0)
    buffer.insert(make_group(3, [1000, 2000]))
    syncing.publish()
    assert learner.probe is None


def test_observe_leaves_a_searcher_that_evaluates_its_time(parts):
    syncing, _, _, state, page, clock = parts
    page.searcher(0).set(state=ProcessState.RUNNING, evaluating=1)
    state.policy_version = 1
    syncing.publish()
    clock.sleep(100)
    assert syncing.observe()["sync/alarms/total"] == 0
    page.searcher(0).set(evaluating=0)
    clock.sleep(9)
    assert syncing.observe()["sync/alarms/total"] == 0
    clock.sleep(2)
    assert syncing.observe()["sync/alarms/total"] == 1


@pytest.mark.fault("I-18")
@pytest.mark.parametrize("num_published", [1, 2], ids=["newest", "one before"])
def test_observe_alarms_once_about_weights_that_are_not_the_published_ones(parts, num_published):
    syncing, _, _, state, page, _ = parts
    for version in range(1, num_published + 1):
        state.policy_version = version
        syncing.publish()
    page.searcher(0).set(state=ProcessState.RUNNING, fingerprint=FINGERPRINT ^ 1, loaded_version=1)
    for _ in range(2):
        metrics = syncing.observe()
        assert metrics["sync/fingerprint_mismatches/total"] == metrics["sync/alarms/total"] == 1


def test_observe_is_silent_about_the_published_weights(parts):
    syncing, _, _, state, page, _ = parts
    state.policy_version = 1
    syncing.publish()
    page.searcher(0).set(state=ProcessState.RUNNING, fingerprint=FINGERPRINT, loaded_version=1)
    assert syncing.observe()["sync/fingerprint_mismatches/total"] == 0


def load(page, version, *, difference):
    page.searcher(0).set(
        state=ProcessState.RUNNING, fingerprint=FINGERPRINT, loaded_version=version, f_logprob_difference=difference
    )


@pytest.mark.fault("I-18")
@pytest.mark.parametrize("off", [0.6, float("inf"), float("nan")])
def test_observe_ends_the_run_when_a_searcher_is_far_off_for_too_many_versions(parts, off):
    syncing, _, _, state, page, _ = parts
    syncing._section = SyncSection(stop_logprob_difference=0.5, stop_patience=3)
    for version, difference in enumerate((off, off, 0.4, off, off), start=1):
        state.policy_version = version
        syncing.publish()
        load(page, version, difference=difference)
        for _ in range(3):  # a version counts once, however often it is looked at
            syncing.observe()
    state.policy_version = 6
    syncing.publish()
    load(page, 6, difference=off)
    with pytest.raises(ChildFailedError, match=r"searcher 0: .* for 3 policy versions in a row by more than 0\.5"):
        syncing.observe()


@pytest.mark.fault("I-18")
def test_observe_ends_the_run_of_a_searcher_that_is_off_in_each_of_its_lives(parts):
    syncing, _, _, state, page, _ = parts
    syncing._section = SyncSection(stop_logprob_difference=0.5, stop_patience=3)

    def live(version: int) -> None:
        state.policy_version = version
        syncing.publish()
        for _ in range(4):  # lives with one version: it counts once
            page.searcher(0).reset()
            page.searcher(0).set(state=ProcessState.LOADING)
            syncing.observe()
            load(page, version, difference=0.6)
            syncing.observe()

    live(1)
    live(2)
    with pytest.raises(ChildFailedError, match=r"searcher 0: .* for 3 policy versions in a row by more than 0\.5"):
        live(3)


def test_observe_looks_again_at_a_version_that_is_loaded_anew(parts):
    syncing, _, _, state, page, _ = parts
    state.policy_version = 1
    syncing.publish()
    load(page, 1, difference=0.0)
    assert syncing.observe()["sync/alarms/total"] == 0
    page.searcher(0).reset()
    assert syncing.observe()["sync/alarms/total"] == 0
    load(page, 1, difference=100.0)
    assert syncing.observe()["sync/alarms/total"] == 1


def test_observe_with_the_gate_off_only_alarms(parts):
    syncing, _, _, state, page, _ = parts
    syncing._section = SyncSection(stop_logprob_difference=0.0, stop_patience=1)
    for version in range(1, 30):
        state.policy_version = version
        syncing.publish()
        load(page, version, difference=100.0)
        assert syncing.observe()["sync/alarms/total"] == version


def test_observe_does_not_end_a_run_by_default_for_what_rounding_does(parts):
    syncing, _, _, state, page, _ = parts
    syncing._section = SyncSection()
    for version in range(1, 50):
        state.policy_version = version
        syncing.publish()
        load(page, version, difference=1.0)  # many times what bfloat16 was seen to do
        syncing.observe()


def test_observe_shows_what_rewards_say_where_searchers_know_it(parts):
    syncing, _, _, _, page, _ = parts
    page.searcher(0).set(reward_metrics_known=0b10, f_reward_metric_0=7.0, f_reward_metric_1=0.25)
    metrics = syncing.observe()
    assert metrics["searcher/reward_success/mean"] == 0.25
    assert "searcher/reward_toxicity/mean" not in metrics
