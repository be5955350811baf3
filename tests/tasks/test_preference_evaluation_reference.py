"""Log-probs of the reference policy: the same batched or alone, whatever the tokenizer says about padding."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tbactl.errors import CheckpointError, ConfigError
from tbactl_preference.reference_policy import ReferencePolicy
from tests.support.tiny_policy import VOCABULARY_SIZE, make_tiny_policy

END = 256
# Of different lengths; with ends of text (the pad token of a Pythia) and token 0 inside, at the ends, and alone.
SEQUENCES = [
    ((1, 2, 3, 4, 5, 6, 7, 8), 3),
    ((9, 10, END), 2),
    ((END, 11, END, 12, END, END), 1),
    ((0, 0, 13), 1),
    ((14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 0, END), 12),
    ((26, 27), 2),
]


@pytest.fixture(scope="module", params=["gpt_neox", "gpt2", "llama"])
def policy(request, tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / request.param, architecture=request.param)


def unpadded(policy):
    """Each sequence alone, by log_softmax over the whole vocabulary."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    rows = []
    for ids, prompt_length in SEQUENCES:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        rows.append([logprobs[i - 1, ids[i]].item() for i in range(prompt_length, len(ids))])
    return rows


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("has_pad_token", [False, True])
def test_batched_logprobs_are_those_of_the_unpadded_computation(policy, padding_side, has_pad_token):
    tokenizer = AutoTokenizer.from_pretrained(policy, padding_side=padding_side)
    tokenizer.pad_token = tokenizer.eos_token if has_pad_token else None
    model = AutoModelForCausalLM.from_pretrained(policy)
    model.config.pad_token_id = END if has_pad_token else None
    scores = ReferencePolicy(model, tokenizer).sequence_logprobs(SEQUENCES)
    for found, expected in zip(scores, unpadded(policy), strict=True):
        assert found == pytest.approx(expected, abs=2e-4)
        assert sum(found) == pytest.approx(sum(expected), abs=5e-4)


def test_batches_of_any_size_give_the_same(policy):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
    together = ReferencePolicy(model, tokenizer).sequence_logprobs(SEQUENCES)
    # Room for 8 tokens: the longest sequence is computed alone all the same.
    bounded = ReferencePolicy(model, tokenizer, max_logits=8 * VOCABULARY_SIZE).sequence_logprobs(SEQUENCES)
    for some, others in zip(together, bounded, strict=True):
        assert some == pytest.approx(others, abs=2e-4)


def test_loaded_reference_reads_and_writes_with_the_policys_tokenizer(policy):
    reference = ReferencePolicy.load(str(policy))
    ids = reference.encode("prompt")
    assert len(ids) == 6
    assert reference.decode((*ids, END)) == "prompt"
    assert [len(row) for row in reference.sequence_logprobs([((*ids, END), 6), (ids, 6)])] == [1, 0]


def test_reference_that_is_not_there_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        ReferencePolicy.load(str(tmp_path / "none"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ConfigError, match=r"reference_policy = .*cannot load it.*reference_policy=none"):
        ReferencePolicy.load(str(tmp_path))
