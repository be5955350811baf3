from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from trl.trainer.dpo_trainer import DPOTrainer

from tbactl.errors import ConfigError
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.online_dpo import OnlineDpo, best_and_worst
from tests.support.objective_batches import one_token_batch, random_batch


def gradient(loss: Tensor, batch: ObjectiveBatch) -> Tensor:
    (result,) = torch.autograd.grad(loss, batch.policy_logprobs)
    return result


class GivenPairs(DPOTrainer):
    """TRL's loss on our numbers: two "models" that answer with log-probs of the chosen rows, then of the rejected."""

    precompute_ref_logps = aux_loss_enabled = use_weighting = False
    ld_alpha = None
    f_divergence_type = "reverse_kl"
    loss_types, loss_weights = ("sigmoid",), (1.0,)

    def __init__(self, batch: ObjectiveBatch) -> None:
        self.beta = batch.beta
        # Theirs would join the process group that tests of real learners leave open.
        self.accelerator = SimpleNamespace(
            device=torch.device("cpu"),
            gather=lambda values: values,
            gather_for_metrics=lambda values: values,
            unwrap_model=lambda model, **_: model,
        )
        self.args = SimpleNamespace(gradient_checkpointing_kwargs=None)
        self._tp_size, self._total_train_tokens = 1, 0
        self._metrics = {"train": defaultdict(list)}
        chosen, rejected = best_and_worst(batch)
        rows = torch.cat([chosen, rejected])
        self.mask = batch.completion_mask[rows]
        self.model = self.answering(batch.policy_logprobs[rows])
        self.ref_model = self.answering(batch.reference_logprobs[rows])

    def answering(self, logprobs: Tensor) -> torch.nn.Module:
        # Like the model of theirs, 0 outside the completion.
        scored = logprobs.where(self.mask, 0.0)
        nothing = torch.zeros_like(self.mask, dtype=torch.float64)
        answer = SimpleNamespace(
            log_probs=scored, entropy=nothing, mean_logits=nothing, is_top1=torch.zeros_like(self.mask)
        )

        class Answering(torch.nn.Module):
            is_gradient_checkpointing = False

            def forward(self, **_: object) -> SimpleNamespace:
                return answer

        return Answering()

    def loss(self) -> Tensor:
        # A first place that belongs to the prompt, which their shift by one drops.
        mask = torch.nn.functional.pad(self.mask, (1, 0))
        inputs = {"input_ids": torch.zeros_like(mask).long(), "completion_mask": mask.long()}
        return self._compute_loss(self.model, inputs | {"attention_mask": torch.ones_like(mask)}, False)


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0])
def test_loss_and_gradient_are_those_of_trl(beta: float) -> None:
    batch = random_batch([2, 5, 3], num_tokens=6, beta=beta, seed=8)
    ours, theirs = OnlineDpo()(batch)[0], GivenPairs(batch).loss()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient(ours, batch), gradient(theirs, batch), rtol=1e-9, atol=1e-12)


def test_loss_gradient_and_metrics_of_a_hand_computed_batch() -> None:
    # Log-ratios [1, 0, -1 | 0, 0]; prompt 0: row 0 against row 2, margin 0.5 * 2; prompt 1: equal rewards.
    batch = one_token_batch(
        policy=[-1.0, -2.0, -3.0, -1.0, -1.0],
        reference=[-2.0, -2.0, -2.0, -1.0, -1.0],
        rewards=[1.0, 0.5, 0.0, 1.0, 1.0],
        group_index=[0, 0, 0, 1, 1],
        beta=0.5,
    )
    loss, metrics = OnlineDpo()(batch)
    expected = math.log1p(math.exp(-1.0))
    assert loss.item() == pytest.approx(expected / 2)
    slope = 0.5 / (1 + math.exp(1.0)) / 2
    assert gradient(loss, batch).flatten().tolist() == pytest.approx([-slope, 0.0, slope, 0.0, 0.0])
    values = reduce_metrics([metrics])
    assert values["objective/loss/mean"] == pytest.approx(expected / 2)
    assert values["objective/pairs/share"] == 0.5
    assert values["objective/preference_margin/mean"] == pytest.approx(1.0)
    assert values["objective/preference_accuracy/share"] == 1.0


def test_of_equal_rewards_the_first_row_counts() -> None:
    batch = one_token_batch(policy=[-1.0] * 6, rewards=[0.0, 1.0, 1.0, 0.0, 1.0, -2.0], group_index=[0, 0, 0, 0, 1, 1])
    chosen, rejected = best_and_worst(batch)
    assert (chosen.tolist(), rejected.tolist()) == ([1, 4], [0, 5])


@pytest.mark.parametrize("group_index", [[0, 0, 0], [0, 1, 2]], ids=["equal rewards", "one trajectory each"])
def test_batch_without_a_pair_has_loss_zero_and_no_margin(group_index: list[int]) -> None:
    batch = one_token_batch(policy=[-1.0, -2.0, -3.0], reference=[0.0] * 3, rewards=[1.0] * 3, group_index=group_index)
    loss, metrics = OnlineDpo()(batch)
    assert loss.item() == 0.0
    assert not gradient(loss, batch).any()
    values = reduce_metrics([metrics])
    assert values["objective/pairs/share"] == 0.0
    assert "objective/preference_margin/mean" not in values


def test_scale_of_rewards_has_no_effect() -> None:
    batch = random_batch([4, 3], seed=6)
    other = replace(batch, rewards=1e6 * batch.rewards)
    assert OnlineDpo()(other)[0].item() == OnlineDpo()(batch)[0].item()


def test_empty_completion_can_be_one_of_the_pair() -> None:
    batch = random_batch([2], seed=1)
    empty = replace(batch, completion_mask=torch.zeros_like(batch.completion_mask))
    assert OnlineDpo()(empty)[0].item() == pytest.approx(math.log(2.0))


def test_margin_of_thousands_keeps_the_gradient_of_a_wrong_order() -> None:
    batch = one_token_batch(policy=[-5000.0, -1.0], reference=[-1.0, -5000.0], rewards=[1.0, 0.0], group_index=[0, 0])
    loss = OnlineDpo()(batch)[0]
    assert loss.item() == pytest.approx(9998.0)
    assert gradient(loss, batch).flatten().tolist() == pytest.approx([-1.0, 1.0])


def test_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"objective\.options\.beta: .* did you mean 'objective\.beta'\?"):
        OnlineDpo(beta=0.1)
