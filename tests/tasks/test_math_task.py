from __future__ import annotations

import json
import threading
from itertools import islice
from pathlib import Path

import pytest

from tbactl.errors import ConfigError, TaskError
from tbactl.types import Completion, Prompt
from tbactl_math.task import MathTask

CASES = [json.loads(line) for line in (Path(__file__).parent / "answer_cases.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def task():
    task = MathTask({"time_limit_s": 20})
    yield task
    task.close()


def completion(text):
    return Completion(token_ids=(), logprobs=(), text=text, finish_reason="stop")


def reward(task, text, gold):
    return task.score(Prompt(prompt_id=0, text="", facts={"answer": gold}), [completion(text)])[0]


def gsm8k_file(path, num_rows=80):
    rows = (
        {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"}
        for n in range(num_rows)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.fault("I-43", "I-44", "I-45", "R-05")
@pytest.mark.parametrize("case", CASES, ids=[f"{number}: {case['note']}" for number, case in enumerate(CASES, start=1)])
def test_score_answer_cases(task, case):
    result = reward(task, case["completion"], case["gold"])
    assert (result.error is None) is bool(case["gold"])
    assert (result.value == 1.0) is case["correct"], result.reason


def test_answer_cases_are_many_distinct_and_of_both_kinds():
    assert len({(case["completion"], case["gold"]) for case in CASES}) == len(CASES) >= 80
    assert 0.2 < sum(case["correct"] for case in CASES) / len(CASES) < 0.8


def test_score_says_what_was_found_where_and_expected(task):
    assert reward(task, "#### 1,200", "1200").reason == 'equal: "1,200" (####), expected "1200"'
    assert reward(task, "", "5").reason == 'no answer found; expected "5"'
    assert "by algebra" in reward(task, "\\boxed{\\sqrt{8}}", "2\\sqrt{2}").reason


def test_score_reason_shows_no_control_characters(task):
    result = reward(task, "#### \x1b]0;owned\x07 \u202e word", "5")
    assert result.reason.isascii() and result.reason.isprintable()


def test_score_keeps_order_and_counts_answers(task):
    prompt = Prompt(prompt_id=0, text="", facts={"answer": "2"})
    rewards = task.score(prompt, [completion(text) for text in ("1", "2", "", "#### 2", "3")])
    assert [item.value for item in rewards] == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert [item.metrics["has_answer"] for item in rewards] == [1.0, 1.0, 0.0, 1.0, 1.0]


@pytest.mark.fault("I-41")
def test_score_in_threads_gives_the_same_rewards(task):
    texts = [f"\\boxed{{{n}\\sqrt{{2}}}}" for n in range(1, 9)]
    results: dict[int, list[float]] = {}

    def score(name):
        prompt = Prompt(prompt_id=0, text="", facts={"answer": "\\sqrt{18}"})
        results[name] = [item.value for item in task.score(prompt, [completion(text) for text in texts])]

    threads = [threading.Thread(target=score, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert list(results.values()) == [[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]] * 4


@pytest.mark.fault("R-05")
def test_score_expected_answer_that_cannot_be_read_is_an_error_whatever_was_said(task):
    for text in ("", "#### 5"):
        result = reward(task, text, " ")
        assert result.error == 'the expected answer "" cannot be read' and result.value == 0.0


@pytest.mark.parametrize(
    ("completion_text", "gold", "expected"),
    [("#### 1_000", "1000", 1.0), ("The answer is 12_345_678.", "12345678", 1.0), ("#### 10_00", "1000", 0.0)],
)
def test_score_underscores_between_groups_of_three_digits_are_read(task, completion_text, gold, expected):
    assert reward(task, completion_text, gold).value == expected


def test_score_prompt_without_answer_is_an_error_of_the_data(task):
    with pytest.raises(TaskError, match="no fact"):
        task.score(Prompt(prompt_id=0, text=""), [completion("1")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dificulty": "easy"}, r"task\.options\.dificulty: there is no such option \(did you mean 'difficulty'\?\)"),
        ({"difficulty": "hard"}, r'task\.options\.difficulty = "hard"'),
        ({"problems": "gsm8"}, r"'gsm8' is unknown \(did you mean 'gsm8k'\?\)"),
        ({"problems": "nowhere.jsonl"}, r"task\.options\.problems = 'nowhere\.jsonl': there is no such file"),
        ({"data": "nowhere.jsonl"}, r"task\.options\.data = 'nowhere\.jsonl': there is no such file"),
        ({"time_limit_s": 0}, r"task\.options\.time_limit_s = 0"),
        ({"num_samples": "many"}, r"task\.options\.num_samples"),
    ],
)
def test_options_wrong_value_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        MathTask(options)


def test_options_all_mistakes_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        MathTask({"difficulty": "hard", "temperature": -1, "colour": "red"})
    assert len(caught.value.problems) == 3


def test_options_by_keyword_and_as_mapping_are_the_same():
    assert MathTask({"difficulty": "all"}).options == MathTask(difficulty="all").options


def test_prompts_of_a_file_are_split_without_overlap_and_repeat(tmp_path):
    task = MathTask({"problems": str(gsm8k_file(tmp_path / "problems.jsonl"))})
    train, test = (list(islice(task.prompts(split, seed=0), 300)) for split in ("train", "test"))
    assert not {prompt.text for prompt in train} & {prompt.text for prompt in test}
    assert len({prompt.text for prompt in train + test}) == 80
    with pytest.raises(TaskError, match="no split 'validation'"):
        task.prompts("validation", seed=0)


def test_evaluation_prompts_of_data_are_the_first_in_its_order(tmp_path):
    data = gsm8k_file(tmp_path / "held_out.jsonl", num_rows=30)
    task = MathTask({"problems": "gsm-symbolic", "data": str(data)})
    expected = [f"What is {n} + 1?" for n in range(30)]
    for limit, count in ((5, 5), (0, 30), (100, 30)):
        prompts = task.evaluation_prompts(limit=limit, seed=9)
        assert [prompt.text.splitlines()[1] for prompt in prompts] == expected[:count]
    assert "What is" not in next(task.prompts("train", seed=0)).text


def test_evaluation_prompts_of_the_endless_stream_depend_on_the_seed(task):
    first, again, other = (task.evaluation_prompts(limit=20, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_evaluate_policy_that_knows_every_answer_has_accuracy_one(task):
    def generate(prompts, num_completions, sampling):
        return [[completion(f"#### {prompt.facts['answer']}")] * num_completions for prompt in prompts]

    result = task.evaluate(generate, limit=16, seed=0, policy_version=5)
    assert result.metrics["accuracy"] == 1.0
    assert result.intervals["accuracy"][0] < 1.0


def test_self_check_of_every_source_finds_nothing(task, tmp_path):
    assert task.self_check() == []
    rows = [
        {"problem": f"Q{n}", "solution": f"So $\\boxed{{{a}}}$.", "answer": a}
        for n, a in enumerate(["\\frac{1}{2}", "x+1", "(1,2)", "\\text{east}", "90^\\circ"] * 4)
    ]
    file = tmp_path / "math.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = MathTask({"problems": str(file)})
    try:
        assert other.self_check() == []
    finally:
        other.close()


def test_self_check_reports_data_that_cannot_be_read(tmp_path):
    file = tmp_path / "broken.jsonl"
    file.write_text("not JSON\n")
    broken = MathTask({"problems": str(file)})
    try:
        assert any("not JSON" in problem for problem in broken.self_check())
    finally:
        broken.close()


def test_policy_path_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="ships no policy 'huge'"):
        MathTask.policy_path("huge")
    with pytest.raises(ConfigError, match="ships no policy"):
        MathTask.policy_path("../policies")


def test_construction_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys; from tbactl_math.task import MathTask; MathTask({}).close();"
        "print([m for m in ('torch', 'sympy', 'math_verify', 'datasets', 'reasoning_gym') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    ).stdout
    assert output.strip() == "[]"
