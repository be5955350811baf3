from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM

from tbactl.trainer.collate import collate
from tbactl.trainer.scoring import ScoringModel
from tests.support.tiny_policy import make_byte_tokenizer, make_tiny_policy
from tests.support.trainer_groups import make_group, make_groups

TEMPERATURE = 0.7


@pytest.fixture(scope="module", params=["llama", "qwen2", "gpt_neox"])
def model(request, tmp_path_factory):
    directory = make_tiny_policy(tmp_path_factory.mktemp("policy") / request.param, architecture=request.param)
    policy = AutoModelForCausalLM.from_pretrained(directory).eval().double()
    return ScoringModel(policy, temperature=TEMPERATURE, chunk_tokens=7)


def plain_logprobs(model, group):
    """One sequence at a time, unpadded, from the model's own logits."""
    rows = []
    for trajectory in group.trajectories:
        ids = torch.tensor([*group.prompt_token_ids, *trajectory.completion.token_ids])
        logprobs = (model.policy(ids[None]).logits[0] / TEMPERATURE).log_softmax(-1)
        start = len(group.prompt_token_ids)
        rows.append(logprobs[start - 1 : len(ids) - 1].gather(-1, ids[start:, None]).squeeze(-1))
    return rows


@pytest.mark.fault("I-25", "I-38")
@pytest.mark.parametrize("shares_prompt", [False, True])
def test_logprobs_of_micro_batch_equal_those_of_single_sequences(model, shares_prompt):
    groups = [*make_groups(4, size=4), make_group(prompt_tokens=1, completion_tokens=[1, 1], prompt_id=9)]
    batch = collate(groups, shares_prompt=shares_prompt)
    logprobs = model(batch)

    expected = [row for group in groups for row in plain_logprobs(model, group)]
    for row, mask, own in zip(logprobs, batch.completion_mask, expected, strict=True):
        torch.testing.assert_close(row[mask], own, atol=1e-9, rtol=0)
        assert not row[~mask].any()


def test_gradients_of_shared_prompts_equal_those_of_padded_rows(model):
    groups = make_groups(3, size=4)
    gradients = []
    for shares_prompt in (False, True):
        batch = collate(groups, shares_prompt=shares_prompt)
        model.zero_grad()
        logprobs = model(batch)
        # Weights that differ by position, so that no mix-up cancels.
        weights = torch.linspace(-1, 1, logprobs.numel()).view_as(logprobs)
        (logprobs * weights).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    difference = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    assert difference < 1e-6, float(difference)


@pytest.mark.fault("I-34")
@pytest.mark.parametrize("shares_prompt", [False, True])
def test_completion_mask_lengths_3_7_12_counts_exactly_these_tokens(shares_prompt):
    batch = collate([make_group(prompt_tokens=5, completion_tokens=[3, 7, 12])], shares_prompt=shares_prompt)

    assert batch.completion_mask.sum(dim=1).tolist() == [3, 7, 12]
    assert batch.target_ids.shape == (3, 12)


@pytest.mark.fault("I-33", "R-02")
@pytest.mark.parametrize("filler", [0, make_byte_tokenizer().eos_token_id])
def test_real_tokens_that_equal_the_filler_or_eos_are_counted_once(model, filler, monkeypatch):
    monkeypatch.setattr("tbactl.trainer.collate.FILLER", filler)
    group = make_group(prompt_tokens=4, completion_tokens=[6, 2])
    ends_twice = dataclasses.replace(group.trajectories[0].completion, token_ids=(7, filler, filler, 3, filler, filler))
    group = dataclasses.replace(
        group,
        prompt_token_ids=(filler, 5, filler, filler),
        trajectories=(dataclasses.replace(group.trajectories[0], completion=ends_twice), group.trajectories[1]),
    )
    for shares_prompt in (False, True):
        batch = collate([group], shares_prompt=shares_prompt)
        logprobs = model(batch)
        for row, own in zip(logprobs, plain_logprobs(model, group), strict=True):
            torch.testing.assert_close(row[: len(own)], own, atol=1e-9, rtol=0)
            assert row[len(own) :].sum() == 0


@pytest.mark.parametrize("shares_prompt", [False, True])
def test_collate_empty_completion_has_no_tokens_and_disturbs_nobody(model, shares_prompt):
    group = make_group(prompt_tokens=4, completion_tokens=[0, 5])
    batch = collate([group], shares_prompt=shares_prompt)
    logprobs = model(batch)

    assert not logprobs[0].any()
    torch.testing.assert_close(logprobs[1], plain_logprobs(model, group)[1], atol=1e-9, rtol=0)


@pytest.mark.fault("R-04")
def test_collate_keeps_rewards_behaviour_and_uids_with_their_rows():
    groups = [
        make_group(prompt_tokens=2, completion_tokens=[2, 1], rewards=[0.25, 1.0], prompt_id=0),
        make_group(prompt_tokens=3, completion_tokens=[3], rewards=[-2.0], prompt_id=1),
    ]
    batch = collate(groups, shares_prompt=True)

    assert batch.rewards.tolist() == [0.25, 1.0, -2.0]
    assert batch.group_index.tolist() == [0, 0, 1]
    assert batch.num_groups == 2
    assert batch.uids == tuple(t.uid for group in groups for t in group.trajectories)
    trajectories = [t for group in groups for t in group.trajectories]
    for row, mask, trajectory in zip(batch.behavior_logprobs, batch.completion_mask, trajectories, strict=True):
        assert row[mask].tolist() == pytest.approx(trajectory.completion.logprobs)


def test_completion_sees_neither_its_neighbours_nor_another_prompt(model):
    groups = make_groups(2, size=4)
    before = model(collate(groups, shares_prompt=True))
    changed = groups[0].trajectories[2]
    ids = tuple((i + 1) % 200 for i in changed.completion.token_ids)
    other = dataclasses.replace(changed, completion=dataclasses.replace(changed.completion, token_ids=ids))
    trajectories = list(groups[0].trajectories)
    trajectories[2] = other
    after = model(
        collate([dataclasses.replace(groups[0], trajectories=tuple(trajectories)), groups[1]], shares_prompt=True)
    )

    kept = [row for row in range(len(before)) if row != 2]
    torch.testing.assert_close(after[kept], before[kept], atol=1e-12, rtol=0)


@pytest.mark.fault("I-28", "I-37")
@pytest.mark.parametrize("shares_prompt", [False, True])
def test_ids_and_mask_are_those_that_were_generated_whatever_the_text_says(shares_prompt):
    group = make_group(prompt_tokens=4, completion_tokens=[3, 6])
    completions = [t.completion for t in group.trajectories]
    # Texts that no tokenizer turns into these ids, or into as many.
    others = [dataclasses.replace(c, text=text) for c, text in zip(completions, ("", " 1 2\n\n3 "), strict=True)]
    trajectories = [dataclasses.replace(t, completion=c) for t, c in zip(group.trajectories, others, strict=True)]
    batch = collate([dataclasses.replace(group, trajectories=tuple(trajectories))], shares_prompt=shares_prompt)

    for row, mask, completion in zip(batch.target_ids, batch.completion_mask, completions, strict=True):
        assert tuple(row[mask].tolist()) == completion.token_ids
