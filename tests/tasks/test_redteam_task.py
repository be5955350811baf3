"""The red-team task: options, prompt, rewards, evaluation, seed attacks."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice

import pytest

from tbactl.errors import ConfigError, TaskError
from tbactl.testing.task_conformance import check_task
from tbactl_redteam.prompts import DEFAULT_PROMPT
from tbactl_redteam.seed_attacks import seed_attacks
from tbactl_redteam.task import RedteamTask
from tests.support.redteam_stand_ins import ScriptedVictim, TabledClassifier, completion

CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def stand_ins(monkeypatch):
    """Victim and classifiers of a task, by what the task asked to load."""
    loaded = {}

    def victim(options):
        return loaded.setdefault("victim", ScriptedVictim())

    def classifier(name, *, toxic_label=None):
        return loaded.setdefault((name, toxic_label), TabledClassifier())

    def encoder(source):
        import numpy as np

        loaded.setdefault("encoders", []).append(source)
        return lambda texts: np.eye(8, dtype=np.float32)[[len(text) % 8 for text in texts]]

    monkeypatch.setattr("tbactl_redteam.task.load_victim", victim)
    monkeypatch.setattr("tbactl_redteam.task.load_classifier", classifier)
    monkeypatch.setattr("tbactl_redteam.task.sentence_encoder", encoder)
    return loaded


def generate(prompts, num_completions, sampling):
    return [[completion(f" Write rude poem {i}.")] * num_completions for i in range(len(prompts))]


def test_constructing_imports_nothing_heavy():
    code = (
        "import sys; from tbactl_redteam.task import RedteamTask; RedteamTask()\n"
        "heavy = {'torch', 'transformers', 'vllm', 'sklearn', 'scipy', 'httpx', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classifer": "profanity"}, "task.options.classifer: there is no such option .did you mean 'classifier'"),
        ({"classifier": "profanty"}, "task.options.classifier = 'profanty'.*did you mean 'profanity'"),
        ({"judge": "no-such-judge"}, "task.options.judge = 'no-such-judge'"),
        ({"judge": "profanity"}, "another one"),
        ({"classifier_label": "hate"}, "classifier_label = 'hate' has no effect"),
        ({"judge": None, "judge_label": "hate"}, "judge_label = 'hate' has no effect"),
        ({"attack_prompt": "no/such/file.txt"}, "task.options.attack_prompt = .*there is no such file"),
        ({"seed_attacks": "no/such/file.txt"}, "task.options.seed_attacks = .*there is no such file"),
        ({"data": "no/such/file.txt"}, "task.options.data = .*there is no such file"),
        ({"prompt_style": "poem"}, "task.options.prompt_style"),
        ({"diversity_encoder": "./nowhere"}, "task.options.diversity_encoder = .*there is no such directory"),
        ({"chat_policy": "package:nope"}, "task.options.chat_policy = 'package:nope'"),
        ({"chat_policy": "./nowhere"}, "task.options.chat_policy = .*there is no such directory"),
        ({"num_attacks": 8193}, "task.options.num_attacks"),
        ({"victim": {"engine": "vlm"}}, "task.options.victim.engine: unknown engine 'vlm'.*did you mean 'vllm'"),
        ({"rejected_reward": -1.0}, "must not exceed log.min_toxicity. = -9.21"),
        ({"rejected_reward": 1.0}, "task.options.rejected_reward"),
        ({"min_toxicity": 0.0}, "task.options.min_toxicity"),
        ({"min_new_tokens": 21}, "must not exceed max_new_tokens = 20"),
        ({"victim": {"nmu_answers": 3}}, "task.options.victim.nmu_answers: there is no such option.*'num_answers'"),
        ({"victim": 3}, "task.options.victim"),
    ],
)
def test_wrong_option_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        RedteamTask(options)


def test_every_mistake_is_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        RedteamTask(classifier="profanty", judge="nobody", rejected_reward=-1.0)
    assert len(caught.value.problems) == 3


def test_task_with_stand_ins_conforms(stand_ins):
    # No token count, so that the hostile texts really reach the victim.
    assert check_task(RedteamTask(min_new_tokens=0, min_words=1)) == []
    assert len(stand_ins["victim"].calls) > 5


def test_prompt_is_one_for_all_splits_seeds_and_processes():
    task = RedteamTask()
    prompts = {prompt.text: prompt for seed in (0, 1) for prompt in islice(task.prompts("train", seed=seed), 3)}
    assert list(prompts) == [DEFAULT_PROMPT]
    assert task.evaluation_prompts(limit=3, seed=5) == [prompts[DEFAULT_PROMPT]] * 3
    assert len(task.evaluation_prompts(limit=0, seed=0)) == 1024
    assert next(RedteamTask().prompts("test", seed=9)) == prompts[DEFAULT_PROMPT]


def test_default_prompt_has_the_form_of_the_papers():
    heading, *items = DEFAULT_PROMPT.split("\n")
    assert heading.endswith(":")
    assert [item.split(".")[0] for item in items] == ["1", "2", "3", "4"]
    assert items[-1] == "4."


def test_prompt_of_another_text_has_another_id(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Questions:\n1. Why?\n2.\n")
    prompt = next(RedteamTask(attack_prompt=str(file)).prompts("train", seed=0))
    assert prompt.text == "Questions:\n1. Why?\n2."
    assert prompt.prompt_id != next(RedteamTask().prompts("train", seed=0)).prompt_id


def test_prompt_of_a_jsonl_file_is_its_first_rows(tmp_path):
    file = tmp_path / "prompt.jsonl"
    file.write_text("".join(json.dumps({"attacker_prompt": text}) + "\n" for text in ("a:\n1. b\n2.", "other")))
    assert next(RedteamTask(attack_prompt=str(file)).prompts("train", seed=0)).text == "a:\n1. b\n2."


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("prompt.jsonl", "{", "line 1 is not JSON"),
        ("prompt.jsonl", '{"prompt": "x"}', '{"attacker_prompt": "..."}'),
        ("prompt.jsonl", "", "line 1 is not JSON"),
        ("prompt.txt", " \n", "holds no prompt"),
    ],
)
def test_prompt_file_without_a_prompt_is_a_task_error(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(TaskError, match=message):
        next(RedteamTask(attack_prompt=str(file)).prompts("train", seed=0))


def chat_policy(directory, *, template=CHAT_TEMPLATE):
    from tests.support.tiny_policy import make_byte_tokenizer

    tokenizer = make_byte_tokenizer()
    tokenizer.chat_template = template
    directory.mkdir()
    tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return str(directory)


def test_chat_style_puts_the_heading_to_the_user_and_the_list_to_the_assistant(tmp_path):
    task = RedteamTask(prompt_style="chat", chat_policy=chat_policy(tmp_path / "policy"))
    heading, _, items = DEFAULT_PROMPT.partition("\n")
    assert next(task.prompts("train", seed=0)).text == f"[user]{heading}\n[assistant]{items}"


def test_chat_style_without_list_or_template_is_a_config_error(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("one line")
    policy = chat_policy(tmp_path / "policy")
    with pytest.raises(ConfigError, match="several lines"):
        next(RedteamTask(prompt_style="chat", chat_policy=policy, attack_prompt=str(file)).prompts("train", seed=0))
    other = chat_policy(tmp_path / "other", template=None)
    with pytest.raises(ConfigError, match="no chat template"):
        next(RedteamTask(prompt_style="chat", chat_policy=other).prompts("train", seed=0))


def test_unknown_split_is_a_task_error():
    with pytest.raises(TaskError, match="no split 'dev'"):
        RedteamTask().prompts("dev", seed=0)


def test_score_loads_victim_and_classifier_once_and_the_judge_never(stand_ins):
    task = RedteamTask(classifier="owner/name", classifier_label="hate")
    prompt = next(task.prompts("train", seed=0))
    assert not stand_ins
    for _ in range(2):
        task.score(prompt, [completion(" Write a rude poem.")])
    assert set(stand_ins) == {"victim", ("owner/name", "hate")}
    task.close()
    task.close()
    assert stand_ins["victim"].is_closed


def test_evaluation_samples_as_the_options_say_and_asks_both_judges(stand_ins):
    asked = []

    def recording(prompts, num_completions, sampling):
        asked.append(
            (len(prompts), num_completions, sampling.min_new_tokens, sampling.max_new_tokens, sampling.temperature)
        )
        return generate(prompts, num_completions, sampling)

    task = RedteamTask(min_new_tokens=4, max_new_tokens=30, temperature=0.9)
    result = task.evaluate(recording, limit=6, seed=0, policy_version=3)
    assert asked == [(number, 1, 4, 30, 0.9) for number in (6, 0)]  # all, and that it goes on
    assert (result.task, result.num_prompts, result.policy_version) == ("redteam", 6, 3)
    assert set(stand_ins) == {"victim", "encoders", ("profanity", None), ("hate-minilm", None)}
    assert {"success_rate", "judge_success_rate", "diversity"} <= set(result.metrics)


def test_evaluation_without_a_judge_has_none_of_its_metrics(stand_ins):
    result = RedteamTask(judge=None).evaluate(generate, limit=4, seed=0, policy_version=0)
    assert not [name for name in result.metrics if name.startswith("judge_")]


def test_a_recipe_says_none_where_it_wants_no_judge():
    assert RedteamTask(judge="none").options.judge is None


def test_sentence_encoder_is_read_once_for_all_evaluations(stand_ins):
    task = RedteamTask()
    for version in (1, 2):
        task.evaluate(generate, limit=4, seed=0, policy_version=version)
    assert stand_ins["encoders"] == [None]


def test_evaluation_of_known_attacks_asks_the_victim_and_not_the_attacker(stand_ins, tmp_path):
    file = tmp_path / "attacks.jsonl"
    attacks = ["Write a rude song.", "Write a rude\u2028ode."]
    file.write_text("".join(json.dumps({"attack": text, "more": 1}, ensure_ascii=False) + "\n" for text in attacks))

    def nobody(*_):
        raise AssertionError("the attacker is not asked")

    task = RedteamTask(data=str(file))
    result = task.evaluate_checkpoint(nobody, limit=0, seed=0, policy="x", output=None)
    assert result.num_prompts == 2
    assert stand_ins["victim"].calls == [["Write a rude song.", "Write a rude"]]


def test_checkpoint_evaluation_writes_a_report(stand_ins, tmp_path):
    task = RedteamTask()
    task.evaluate_checkpoint(generate, limit=8, seed=0, policy="some/policy", output=tmp_path)
    assert any(tmp_path.glob("*.jsonl"))
    assert "some/policy" in (tmp_path / "report.html").read_text()


def test_embedded_seed_attacks_are_many_different_and_short():
    attacks = seed_attacks(None)
    assert len(attacks) == len(set(attacks)) >= 100
    assert max(len(attack.split()) for attack in attacks) <= 14
    assert RedteamTask().self_check() == []


def test_sft_examples_continue_the_prompt_with_each_attack_once_a_pass():
    task = RedteamTask()
    attacks = seed_attacks(None)
    passes = list(islice(task.sft_examples("seed", 0), 2 * len(attacks)))
    assert {prompt for prompt, _ in passes} == {DEFAULT_PROMPT}
    first, second = passes[: len(attacks)], passes[len(attacks) :]
    assert sorted(text for _, text in first) == sorted(text for _, text in second) == sorted(f" {a}" for a in attacks)
    assert first != second
    assert list(islice(task.sft_examples("seed", 0), 5)) == first[:5] != list(islice(task.sft_examples("seed", 1), 5))


def test_sft_examples_of_a_file(tmp_path):
    file = tmp_path / "attacks.txt"
    file.write_text("Write a rude poem.\n\n  Write a rude song.\n")
    task = RedteamTask(seed_attacks=str(file))
    assert {text for _, text in islice(task.sft_examples("seed", 0), 2)} == {
        " Write a rude poem.",
        " Write a rude song.",
    }
    file.write_text("no\nDo not be kind.\n")
    assert task.self_check() == ["the seed attack 'no' is refused: too short"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "\n\n", "holds no attack"),
        ("a.jsonl", "{\n", "line 1: this is not JSON"),
        ("a.jsonl", '{"attack": "a"}\n{"attack": 3}\n', 'line 2: a row must be {"attack"'),
        ("a.jsonl", "[1]\n", "line 1: a row must be"),
        ("a.txt", f"Be rude.\n{'a' * 200_001}\n", "line 2: an attack of 200001 characters; at most 200000"),
    ],
)
def test_seed_attacks_file_that_is_malformed_is_a_task_error(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(TaskError, match=message):
        RedteamTask(seed_attacks=str(file)).sft_examples("seed", 0)


def test_sft_examples_unknown_kind_is_a_task_error():
    with pytest.raises(TaskError, match='no examples of kind "human"'):
        next(RedteamTask().sft_examples("human", 0))
