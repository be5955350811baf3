from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoConfig, LlamaForCausalLM, LlamaModel

from tbactl.errors import ConfigError
from tbactl.trainer.collate import collate
from tbactl.trainer.policy import remove_dropout
from tbactl.trainer.recompute import recompute_layers
from tbactl.trainer.reference import ReferenceScorer
from tbactl.trainer.scoring import ScoringModel
from tbactl.trainer.scoring_check import check_scoring
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_group, make_groups

CPU = torch.device("cpu")


@pytest.fixture
def policy(tmp_path):
    return AutoModelForCausalLM.from_pretrained(make_tiny_policy(tmp_path / "policy")).eval()


def scoring_model(policy, *, temperature=0.7):
    return ScoringModel(policy, temperature=temperature, chunk_tokens=16)


@pytest.mark.fault("I-25")
def test_logprobs_of_all_next_tokens_sum_to_one_at_any_temperature(policy):
    for temperature in (0.5, 1.0, 2.0):
        vocabulary = policy.config.vocab_size
        batch = collate([make_group(prompt_tokens=3, completion_tokens=[1] * vocabulary)], shares_prompt=True)
        batch = batch.__class__(**(vars(batch) | {"target_ids": torch.arange(vocabulary)[:, None]}))
        logprobs = scoring_model(policy, temperature=temperature)(batch)
        assert logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_logprobs_explicit_temperature_overrides_the_models_own(policy):
    batch = collate(make_groups(1), shares_prompt=True)
    warm = scoring_model(policy, temperature=0.7)(batch, temperature=1.0)
    assert torch.equal(warm, scoring_model(policy, temperature=1.0)(batch))
    assert not torch.equal(warm, scoring_model(policy, temperature=0.7)(batch))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt_neox"])
def test_check_scoring_supported_architecture_shares_prompts(architecture, tmp_path):
    policy = AutoModelForCausalLM.from_pretrained(make_tiny_policy(tmp_path / "p", architecture=architecture)).eval()
    assert check_scoring(scoring_model(policy)) is None


def test_check_scoring_model_that_caps_its_logits_is_refused(policy):
    class Capped(LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = torch.tanh(output.logits)
            return output

    policy.__class__ = Capped
    with pytest.raises(ConfigError, match="transforms its logits"):
        check_scoring(scoring_model(policy))


def test_check_scoring_sliding_window_keeps_padded_rows(policy):
    policy.config.sliding_window = 4096
    assert "sliding window" in (check_scoring(scoring_model(policy)) or "")


def gpt_neo(*, window, kind="local"):
    torch.manual_seed(0)
    config = GPTNeoConfig(
        vocab_size=50,
        hidden_size=16,
        num_heads=2,
        num_layers=2,
        attention_types=[[["global", kind], 1]],
        window_size=window,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()


@pytest.mark.parametrize("window", [4, 16])  # within the check's small batch, and beyond it
def test_check_scoring_window_of_gpt_neo_keeps_padded_rows(window):
    assert "sliding window" in (check_scoring(scoring_model(gpt_neo(window=window))) or "")


def test_check_scoring_gpt_neo_without_local_layers_shares_prompts():
    assert check_scoring(scoring_model(gpt_neo(window=4, kind="global"))) is None


@pytest.mark.parametrize("name", ["window_size", "attention_window", "attention_window_size", "attention_chunk_size"])
def test_check_scoring_window_of_any_name_keeps_padded_rows(policy, name):
    setattr(policy.config, name, 4096)
    assert "sliding window" in (check_scoring(scoring_model(policy)) or "")
    setattr(policy.config, name, None)
    assert check_scoring(scoring_model(policy)) is None


def test_shared_prompt_beside_a_longer_one_would_be_cut_by_gpt_neos_window():
    """What the refusal is for: whole sequences fit into the window, and yet the filler pushes the prompt out of it."""
    model = scoring_model(gpt_neo(window=16))
    groups = [
        make_group(prompt_tokens=tokens, completion_tokens=[4, 2], seed=tokens, vocabulary=50) for tokens in (3, 24)
    ]
    plain, shared = (model(collate(groups, shares_prompt=is_shared)) for is_shared in (False, True))
    assert (plain - shared)[:2].abs().max() > 1e-4
    alone = model(collate(groups[:1], shares_prompt=True))
    torch.testing.assert_close(alone, plain[:2, : alone.shape[1]], atol=1e-9, rtol=0)


def test_check_scoring_model_that_refuses_the_cache_keeps_padded_rows(policy):
    class Refusing(LlamaModel):
        def forward(self, *args, past_key_values=None, **kwargs):
            if past_key_values is not None:
                raise NotImplementedError("no cache here")
            return super().forward(*args, **kwargs)

    policy.model.__class__ = Refusing
    obstacle = check_scoring(scoring_model(policy)) or ""
    assert "does not take a prompt's keys and values: NotImplementedError: no cache here" in obstacle


def test_check_scoring_frozen_policy_can_be_checked(policy):
    assert check_scoring(scoring_model(policy.requires_grad_(False))) is None


def test_check_scoring_leaves_no_gradients_and_no_hooks(policy):
    check_scoring(scoring_model(policy))
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert not policy.get_input_embeddings()._forward_hooks


def test_recompute_layers_model_without_such_layers_gets_transformers_switch(policy, monkeypatch):
    monkeypatch.setattr("tbactl.trainer.recompute.GradientCheckpointingLayer", type("Unknown", (), {}))
    recompute_layers(policy)
    assert policy.is_gradient_checkpointing
    assert "gradient checkpointing takes keys and values away" in (check_scoring(scoring_model(policy)) or "")


def test_recompute_layers_model_that_cannot_is_refused(policy, monkeypatch):
    monkeypatch.setattr("tbactl.trainer.recompute.GradientCheckpointingLayer", type("Unknown", (), {}))
    monkeypatch.setattr(type(policy), "supports_gradient_checkpointing", False)
    with pytest.raises(ConfigError, match="Set it to false"):
        recompute_layers(policy)


def test_remove_dropout_covers_layers_and_functional_attention(policy):
    policy.train()
    policy.model.layers[0].self_attn.attention_dropout = 0.5
    policy.model.layers[1].mlp.drop = torch.nn.Dropout(0.5)
    remove_dropout(policy)
    assert policy.model.layers[0].self_attn.attention_dropout == 0.0
    assert policy.model.layers[1].mlp.drop.p == 0.0


@pytest.mark.parametrize("shares_prompt", [True, False])
def test_logprobs_under_a_minimum_length_leave_eos_out_of_the_first_tokens_only(policy, shares_prompt):
    stop_ids, temperature = [3, 256], 0.7
    groups = [make_group(prompt_tokens=3, completion_tokens=[6, 2, 4], vocabulary=200)]
    groups[0] = replace(groups[0], trajectories=tuple(_without(t, unwanted=stop_ids) for t in groups[0].trajectories))
    batch = collate(groups, shares_prompt=shares_prompt)
    model = ScoringModel(policy, temperature=temperature, chunk_tokens=3, min_new_tokens=3, stop_ids=stop_ids)
    for row, trajectory in zip(model(batch), groups[0].trajectories, strict=True):
        ids = trajectory.completion.token_ids
        logits = policy(torch.tensor([[*groups[0].prompt_token_ids, *ids]])).logits[0, 2:-1] / temperature
        logits[:3, stop_ids] = float("-inf")
        expected = logits.log_softmax(-1)[range(len(ids)), ids]
        torch.testing.assert_close(row[: len(ids)], expected, atol=1e-4, rtol=0)
    # What the probe compares is the plain distribution.
    plain = ScoringModel(policy, temperature=1.0, chunk_tokens=3)(batch)
    assert torch.equal(model(batch, temperature=1.0), plain)
    assert check_scoring(model) is None


def _without(trajectory, *, unwanted):
    ids = tuple(1 if token in unwanted else token for token in trajectory.completion.token_ids)
    return replace(trajectory, completion=replace(trajectory.completion, token_ids=ids))


# Reference policy -----------------------------------------------------------------------------------------------------


class CountingModel(ScoringModel):
    def __init__(self, policy, **kwargs):
        super().__init__(policy, **kwargs)
        self.rows = 0

    def forward(self, batch, *, temperature=None):
        self.rows += len(batch.uids)
        return super().forward(batch, temperature=temperature)


def reference_of(policy, *, capacity=100):
    model = CountingModel(policy.requires_grad_(False), temperature=0.7, chunk_tokens=16)
    return ReferenceScorer(model, capacity=capacity, shares_prompt=True), model


def test_reference_logprobs_equal_the_models_and_take_no_gradient(policy):
    scorer, model = reference_of(policy)
    groups = make_groups(3)
    batch = collate(groups, shares_prompt=True)
    logprobs = scorer.logprobs(groups, batch, device=CPU)
    torch.testing.assert_close(logprobs, model(batch), atol=1e-5, rtol=0)
    assert not logprobs.requires_grad


@pytest.mark.fault("R-09")
def test_reference_trajectory_drawn_again_is_not_computed_again(policy):
    scorer, model = reference_of(policy)
    groups = make_groups(4)
    first = scorer.logprobs(groups[:3], collate(groups[:3], shares_prompt=True), device=CPU)
    assert model.rows == 9
    mixed = [groups[3], groups[0]]
    batch = collate(mixed, shares_prompt=True)
    again = scorer.logprobs(mixed, batch, device=CPU)
    assert model.rows == 12
    length = int(batch.completion_mask[3].sum())
    assert torch.equal(again[3, :length], first[0, :length])


def test_reference_duplicate_in_a_group_is_computed_once(policy):
    scorer, model = reference_of(policy)
    group = make_group(prompt_tokens=3, completion_tokens=[4, 2])
    doubled = [
        group.__class__(**{n: getattr(group, n) for n in group.__slots__} | {"trajectories": group.trajectories * 2})
    ]
    logprobs = scorer.logprobs(doubled, collate(doubled, shares_prompt=True), device=CPU)
    assert model.rows == 2
    assert torch.equal(logprobs[0], logprobs[2])


def test_reference_memory_is_bounded_and_forgets_the_least_recently_used(policy):
    scorer, model = reference_of(policy, capacity=3)
    groups = make_groups(2)
    for group in (groups[0], groups[1], groups[1]):
        scorer.logprobs([group], collate([group], shares_prompt=True), device=CPU)
    assert model.rows == 6
    assert groups[1].trajectories[0].uid in scorer
    assert groups[0].trajectories[0].uid not in scorer


def test_reference_with_trainable_parameters_is_refused(policy):
    with pytest.raises(AssertionError, match="must be frozen"):
        ReferenceScorer(scoring_model(policy.requires_grad_(True)), capacity=1, shares_prompt=True)


def test_reference_that_changed_is_computed_again(policy):
    scorer, model = reference_of(policy)
    groups = make_groups(1)
    batch = collate(groups, shares_prompt=True)
    before = scorer.logprobs(groups, batch, device=CPU)
    with torch.no_grad():
        scorer.weights["model.norm.weight"].mul_(1.5)
    assert torch.equal(scorer.logprobs(groups, batch, device=CPU), before)
    scorer.forget()
    assert groups[0].trajectories[0].uid not in scorer
    assert not torch.equal(scorer.logprobs(groups, batch, device=CPU), before)
    assert model.rows == 6
