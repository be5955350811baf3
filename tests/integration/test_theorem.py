"""Trajectory balance finds pi_ref exp(r / beta) / Z in data of a fixed uniform policy, through the whole trainer.

The small sister of `benchmarks/theorem.py`: the same code, strings of up to three symbols.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tbactl import registry
from tbactl.objectives.trajectory_balance import TrajectoryBalance

SPACE_SETTINGS = {"max_length": 3, "num_prompts": 2}
BUDGET_SETTINGS = {"steps": 200, "completions_per_prompt": 64, "num_draws": 2_000, "look_period": 50}
LEARNING_RATE = 1e-2


class WithoutReference(TrajectoryBalance):
    """Deliberately wrong: log pi_ref is missing in the residual, so that its root is exp(r / beta) / Z."""

    def __call__(self, batch):
        return super().__call__(dataclasses.replace(batch, reference_logprobs=torch.zeros_like(batch.policy_logprobs)))


@pytest.fixture(scope="module")
def space():
    from benchmarks.enumerable import Space

    return Space(**SPACE_SETTINGS)


@pytest.fixture(scope="module")
def policy(space, tmp_path_factory):
    from benchmarks.enumerable import write_policy

    return write_policy(tmp_path_factory.mktemp("theorem") / "policy", seed=space.seed, hidden_size=32)


@pytest.fixture
def distances(space, policy, monkeypatch):
    """Total variation before and after training."""
    from benchmarks.offline_run import Budget, Variant, train

    name = "without-reference"
    monkeypatch.setitem(registry.BUILT_IN["tbactl.objectives"], name, f"{__name__}:WithoutReference")

    def measure(kind):
        outcome = train(
            space,
            Variant(name=kind, kind=kind),
            learning_rate=LEARNING_RATE,
            budget=Budget(**BUDGET_SETTINGS),
            policy=policy,
            say=print,
        )
        assert outcome.steps == [0, 50, 100, 150, 200]
        return outcome.total_variation[0], outcome.worst_prompt

    return measure


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
def test_trajectory_balance_uniform_data_reaches_the_target(distances):
    before, after = distances("trajectory-balance")
    assert before > 0.3
    assert after < 0.02


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
def test_residual_without_reference_does_not_reach_the_target(distances):
    _, after = distances("without-reference")
    assert after > 0.1


# The yardstick ----------------------------------------------------------------------------------------------------


def test_enumeration_sums_to_one_and_agrees_with_the_model_token_by_token(space, policy):
    from transformers import LlamaForCausalLM

    from benchmarks.enumerable import EOS

    model = LlamaForCausalLM.from_pretrained(policy)
    logprobs = space.logprobs(model)
    assert logprobs.shape == (2, 85)
    torch.testing.assert_close(logprobs.exp().sum(dim=1), torch.ones(2, dtype=torch.float64))
    for number in (0, 3, 17, 84):
        string = space.strings[number]
        completion = (*string, EOS) if len(string) < space.max_length else string
        for prompt, measured in zip(space.prompts, logprobs[:, number], strict=True):
            ids = torch.tensor([*prompt, *completion])
            with torch.no_grad():
                next_logprobs = (model(input_ids=ids[None]).logits[0].double() / space.temperature).log_softmax(-1)
            places = torch.arange(len(prompt), len(ids))
            assert float(next_logprobs[places - 1, ids[places]].sum()) == pytest.approx(float(measured), abs=1e-5)


def test_target_has_the_one_root_of_the_balance_residual(space, policy):
    from transformers import LlamaForCausalLM

    reference = space.logprobs(LlamaForCausalLM.from_pretrained(policy))
    target = space.target_logprobs(reference)
    log_z = (reference + space.rewards / space.beta).logsumexp(dim=1)
    residual = log_z[:, None] + target - reference - space.rewards / space.beta
    torch.testing.assert_close(residual, torch.zeros_like(residual))
    assert log_z.std() > 0.01  # one log Z for all prompts would not do


def test_uniform_data_covers_the_space_and_says_how_it_was_drawn(space):
    groups = list(space.uniform_data(num_draws=2_000))
    drawn = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(drawn) == len({trajectory.uid for trajectory in drawn}) == 4_000
    assert len({trajectory.completion.text for trajectory in drawn}) == len(space.strings)
    for trajectory in drawn:
        completion = trajectory.completion
        assert (completion.finish_reason == "stop") == (len(completion.text) < space.max_length)
    share = sum(trajectory.completion.text == "" for trajectory in drawn) / len(drawn)
    assert share == pytest.approx(1 / 5, abs=0.03)
    expected = torch.tensor([0.2]).log().item()
    assert all(x == pytest.approx(expected) for x in drawn[0].completion.logprobs)
