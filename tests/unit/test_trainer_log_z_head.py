from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from tbactl.errors import ConfigError
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tbactl.trainer.collate import collate
from tbactl.trainer.log_z_head import LogZHead
from tbactl.trainer.scoring import ScoringModel
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_group, make_groups


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    policy = AutoModelForCausalLM.from_pretrained(make_tiny_policy(tmp_path_factory.mktemp("p") / "policy")).eval()
    scoring = ScoringModel(policy, temperature=0.7, chunk_tokens=16)
    scoring.add_log_z_head(learning_rate=1e-3, initial=0.5)
    assert scoring.log_z_head is not None
    with torch.no_grad():
        scoring.log_z_head.weight.normal_()
    return scoring


@pytest.mark.parametrize("shares_prompt", [True, False], ids=["shared", "padded"])
@pytest.mark.parametrize("groups", [make_groups(4, seed=3), [make_group(prompt_tokens=1, completion_tokens=[1])]])
def test_log_z_is_the_head_of_the_mean_hidden_state_of_the_prompt_alone(model, groups, shares_prompt):
    with torch.no_grad():
        logprobs, log_z = model(collate(groups, shares_prompt=shares_prompt), with_log_z=True)
        expected = []
        for group in groups:
            ids = torch.tensor([group.prompt_token_ids])
            hidden = model.policy.model(input_ids=ids).last_hidden_state[0].mean(dim=0)
            expected.append(float(model.log_z_head.weight @ hidden + model.log_z_head.bias))
        assert log_z.tolist() == pytest.approx(expected, abs=1e-4)
        assert torch.equal(logprobs, model(collate(groups, shares_prompt=shares_prompt)))


@pytest.mark.parametrize("shares_prompt", [True, False], ids=["shared", "padded"])
def test_log_z_has_no_gradient_in_the_policy(model, shares_prompt):
    batch = collate(make_groups(2), shares_prompt=shares_prompt)
    model.zero_grad()
    _, log_z = model(batch, with_log_z=True)
    log_z.sum().backward()
    assert all(parameter.grad is None for parameter in model.policy.parameters())
    assert model.log_z_head.bias.grad.item() == 2.0
    assert model.log_z_head.weight.grad.abs().sum() > 0


def test_log_z_begins_at_its_initial_value_and_is_float32_for_bfloat16_states():
    head = LogZHead(hidden_size=4, learning_rate=1e-3, initial=84.0).bfloat16()
    batch = collate(make_groups(3), shares_prompt=False)
    log_z = head(torch.randn(batch.rows.num_tokens, 4, dtype=torch.bfloat16), batch)
    assert log_z.dtype == torch.float32
    assert log_z.tolist() == [84.0] * 3


def test_objective_that_requires_log_z_without_a_learning_rate_is_refused():
    from tbactl.trainer.learner import check_required_fields

    class Foreign:
        required_fields = frozenset({"log_z"})

        def __call__(self, batch):
            return batch.log_z.sum(), {}

    with pytest.raises(ConfigError, match="'foreign' requires log_z without saying how it is learned"):
        check_required_fields(Foreign(), kind="foreign")
    check_required_fields(TrajectoryBalance(log_z="learned"), kind="trajectory-balance")
