"""`searchers.min_new_tokens`: what real engines say of what they sampled is what the trainer computes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tbactl.config.sections import PolicySection
from tbactl.engines.policy_files import stop_token_ids
from tbactl.trainer.collate import collate
from tbactl.trainer.policy import load_policy
from tbactl.trainer.scoring import ScoringModel, score_only_group
from tests.support.min_new_tokens_process import TEMPERATURE
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_config, make_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MINIMUM = 5
BETA, EXPONENT = 0.2, 0.6
EOS = 256


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """One that may stop at the tokenizer's EOS, and at the token it likes most, which generation_config.json names."""
    directory = make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama", eos_bias=2.0)
    model = load_policy(PolicySection(path=str(directory)), directory=directory).model
    with torch.no_grad():
        shares = (model(torch.arange(256)[:, None]).logits[:, 0, :256] / TEMPERATURE).softmax(-1).mean(0)
    path = directory / "generation_config.json"
    settings = json.loads(path.read_text()) | {"eos_token_id": [EOS, int(shares.argmax())]}
    path.write_text(json.dumps(settings))
    return directory


def stop_ids_of(directory):
    return json.loads((directory / "generation_config.json").read_text())["eos_token_id"]


def scorer_of(directory, *, minimum):
    loaded = load_policy(PolicySection(path=str(directory)), directory=directory)
    stop_ids = stop_token_ids(directory, loaded.tokenizer, trust_remote_code=False)
    assert stop_ids == set(stop_ids_of(directory))
    return ScoringModel(
        loaded.model.eval(), temperature=TEMPERATURE, chunk_tokens=7, min_new_tokens=minimum, stop_ids=stop_ids
    )


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_engines_logprobs_are_the_trainers(engine, policy):
    command = [sys.executable, "-m", "tests.support.min_new_tokens_process", engine, str(policy), str(MINIMUM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    sampled = json.loads(done.stdout.splitlines()[-1])
    groups = [score_only_group(prompt, [completion]) for prompt, completion, _, _ in sampled]
    stops = [len(completion) for _, completion, _, reason in sampled if reason == "stop"]
    assert len(stops) > 3 and min(stops) > MINIMUM
    assert {completion[-1] for _, completion, _, reason in sampled if reason == "stop"} == set(stop_ids_of(policy))
    reported = torch.tensor([value for _, _, logprobs, _ in sampled for value in logprobs])
    for shares_prompt in (True, False):
        batch = collate(groups, shares_prompt=shares_prompt)
        with torch.no_grad():
            computed = scorer_of(policy, minimum=MINIMUM)(batch)[batch.completion_mask]
            unbarred = scorer_of(policy, minimum=0)(batch)[batch.completion_mask]
        torch.testing.assert_close(computed, reported, atol=1e-4, rtol=0)
        # A test that can fail: the policy would have stopped earlier.
        assert (unbarred - reported).abs().max() > 0.01


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_learner_scores_policy_and_reference_without_the_barred_tokens(policy, tmp_path, lora_rank):
    from tbactl.trainer.learner import DeepSpeedLearner

    config = make_config(
        tmp_path,
        policy_directory=policy,
        policy={"path": str(policy), "lora_rank": lora_rank},
        searchers={"temperature": TEMPERATURE, "min_new_tokens": MINIMUM, "max_new_tokens": 16},
        trainer={"zero_stage": 1, "micro_batch_tokens": 80, "learning_rate": 1e-2, "max_steps": 3},
    )
    group = make_group(prompt_tokens=4, completion_tokens=[9, 3, 7, 5], rewards=[0.0, 1.0, 0.5, 0.0])
    barred = stop_ids_of(policy)
    assert not any(token in barred for t in group.trajectories for token in t.completion.token_ids[:MINIMUM])
    learner = DeepSpeedLearner(config)
    try:
        report = learner.update([group], beta=BETA, reference_exponent=EXPONENT, should_abort=lambda: False)
        assert report.metrics["objective/kl/mean"] == pytest.approx(0.0, abs=1e-4)
        learner.export_policy(tmp_path / "after" / "policy")
        moved = learner.update([group], beta=BETA, reference_exponent=EXPONENT, should_abort=lambda: False)
    finally:
        learner.close()
    assert list(report.residuals.values()) == pytest.approx(plain_residuals(policy, policy, group), abs=1e-4)
    after = plain_residuals(tmp_path / "after" / "policy", policy, group)
    assert list(moved.residuals.values()) == pytest.approx(after, abs=1e-3)
    assert after != pytest.approx(list(report.residuals.values()), abs=1e-2)


@pytest.mark.usefixtures("process_group")
def test_pass_of_a_rank_without_work_is_no_gradient_although_its_filler_token_is_barred(tmp_path):
    from tbactl.trainer.collate import FILLER
    from tbactl.trainer.learner import DeepSpeedLearner

    directory = make_tiny_policy(tmp_path / "policy")
    path = directory / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [EOS, FILLER]}))
    config = make_config(
        tmp_path,
        policy_directory=directory,
        policy={"path": str(directory)},
        searchers={"min_new_tokens": 1},
        trainer={"zero_stage": 1},
    )
    learner = DeepSpeedLearner(config)
    try:
        learner._updater._pass_empty(is_last=True)
        assert learner._backend.step().grad_norm == 0.0
    finally:
        learner.close()


def plain_residuals(policy_directory, reference_directory, group):
    """In reward units, from all logits at once: beta (log pi - exponent log pi_ref) - r, minus its mean."""
    policy, reference = (
        plain_logprobs(path, group, stop_ids=stop_ids_of(reference_directory))
        for path in (policy_directory, reference_directory)
    )
    balance = [
        BETA * float(ours.sum() - EXPONENT * theirs.sum()) - trajectory.reward
        for ours, theirs, trajectory in zip(policy, reference, group.trajectories, strict=True)
    ]
    return [value - sum(balance) / len(balance) for value in balance]


def plain_logprobs(directory, group, *, stop_ids):
    model = load_policy(PolicySection(path=str(directory)), directory=directory).model.eval()
    rows = []
    for trajectory in group.trajectories:
        ids = trajectory.completion.token_ids
        with torch.no_grad():
            logits = model(torch.tensor([[*group.prompt_token_ids, *ids]])).logits[0, 3:-1] / TEMPERATURE
        logits[:MINIMUM, stop_ids] = float("-inf")
        rows.append(logits.log_softmax(-1)[range(len(ids)), ids])
    return rows
