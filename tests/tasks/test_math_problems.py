from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import islice

import pytest

from tbactl.errors import TaskError
from tbactl_math.problems import (
    clean_solution,
    generated_problems,
    is_easy,
    load_problems,
    repeat_shuffled,
    text_id,
)
from tbactl_math.prompts import format_prompt
from tbactl_math.sft_examples import sft_examples


def take(split="train", *, seed=0, difficulty="easy", num=200):
    return list(islice(generated_problems(split, seed=seed, difficulty=difficulty), num))


def test_generated_problems_easy_rule_holds():
    for problem in take(num=300):
        numbers = re.findall(r"\d+(?:[.,]\d+)*", problem.text + problem.facts["solution"])
        assert all(number.isdigit() and int(number) <= 100 for number in numbers)
        assert len(problem.facts["solution"]) < 300


def test_generated_problems_solution_ends_with_the_answer_and_has_no_blank_line():
    for problem in take(difficulty="all", num=500):
        lines = problem.facts["solution"].splitlines()
        assert lines[-1] == f"#### {problem.facts['answer']}"
        assert all(line and line == line.strip() for line in lines)


def test_generated_problems_all_contains_hard_ones():
    texts = [(problem.text, problem.facts["solution"]) for problem in take(difficulty="all", num=300)]
    easy = sum(is_easy(text, solution) for text, solution in texts)
    assert 0 < easy < 150


@pytest.mark.parametrize("difficulty", ["easy", "all"])
def test_generated_problems_test_texts_never_occur_in_train(difficulty):
    train = {problem.text for seed in range(3) for problem in take(seed=seed, difficulty=difficulty, num=1000)}
    test = {problem.text for problem in take("test", difficulty=difficulty, num=500)}
    assert not train & test


def test_generated_problems_same_seed_same_stream_other_seed_another():
    assert take(seed=5) == take(seed=5)
    assert len({problem.text for problem in take(seed=5)} & {problem.text for problem in take(seed=6)}) < 10


def test_generated_problems_other_process_gives_the_same_stream():
    code = (
        "from itertools import islice; from tbactl_math.problems import generated_problems as g;"
        "print([p.prompt_id for p in islice(g('train', seed=7, difficulty='all'), 400)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            check=True,
            text=True,
            timeout=240,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert printed == {str([problem.prompt_id for problem in take(seed=7, difficulty="all", num=400)])}


def test_generated_problems_prompt_id_belongs_to_one_text():
    problems = take(difficulty="all", num=3000)
    assert len({problem.prompt_id for problem in problems}) == len({problem.text for problem in problems})
    assert all(0 <= problem.prompt_id < 2**52 for problem in problems)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"split": "dev"}, "dev"),
        ({"seed": -1}, "-1"),
        ({"difficulty": "hard"}, "hard"),
    ],
)
def test_generated_problems_bad_argument_raises(arguments, named):
    with pytest.raises(TaskError, match=named):
        take(**arguments, num=1)


@pytest.mark.parametrize(
    ("question", "solution", "expected"),
    [
        ("He has 100 pens.", "#### 100", True),
        ("He has 101 pens.", "#### 1", False),
        ("He has 1,000 pens.", "#### 1", False),
        ("He has 2.5 pens.", "#### 1", False),
        ("He has 3, then 4.", "3+4=7.\n#### 7", True),
        ("He took 1/2 of 8.", "#### 4", True),
        ("He has 3 pens.", "3*60=180\n#### 180", False),
        ("He has 3 pens.", "a" * 300, False),
        ("He has 3 pens.", "a" * 299, True),
    ],
)
def test_is_easy_border_cases(question, solution, expected):
    assert is_easy(question, solution) is expected


def test_clean_solution_final_answer_is_rewritten_and_notes_removed():
    text = "She has 2*45=<<2*45=90>>90.\n\n  So 90.  \n#### 90.0"
    assert clean_solution(text, answer="90") == "She has 2*45=90.\nSo 90.\n#### 90"


def test_clean_solution_other_final_answer_gives_none():
    assert clean_solution("So 3.\n#### 3", answer="4") is None


@pytest.mark.fault("I-81")
def test_format_prompt_is_the_papers_template():
    assert format_prompt(" What is {x}? ") == "[MATH TASK] Problem:\nWhat is {x}?\n\nSolution:\n"


ROWS = [
    ({"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 1,002"}, "1002", "1+1=2\n#### 1002"),
    ({"problem": "q", "answer": r"\frac{1}{2}", "solution": "half"}, r"\frac{1}{2}", "half\n#### \\frac{1}{2}"),
    ({"input": "q", "target": 14.0}, "14", "#### 14"),
    ({"input": "q", "target": 1.5}, "1.5", "#### 1.5"),
]


@pytest.mark.parametrize(("row", "answer", "solution"), ROWS)
def test_load_problems_each_layout_gives_answer_and_solution(tmp_path, row, answer, solution):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(row) + "\n\n")
    (problem,) = load_problems(str(path))
    assert problem.text == format_prompt("q")
    assert problem.prompt_id == text_id("q")
    assert problem.facts == {"answer": answer, "solution": solution}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no problems"),
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is list"),
        ('{"text": "q"}', "text"),
        ('{"question": "q", "answer": ""}', "row 1"),
    ],
)
def test_load_problems_bad_file_raises(tmp_path, text, named):
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(TaskError, match=named):
        load_problems(str(path))


def test_load_problems_missing_file_raises(tmp_path):
    with pytest.raises(TaskError, match="cannot read"):
        load_problems(str(tmp_path / "none.jsonl"))


def test_repeat_shuffled_every_pass_holds_each_problem_once():
    problems = take(num=20)
    stream = list(islice(repeat_shuffled(problems, seed=1), 40))
    first, second = stream[:20], stream[20:]
    by_id = lambda problem: problem.prompt_id  # noqa: E731
    assert sorted(first, key=by_id) == sorted(second, key=by_id) == sorted(problems, key=by_id)
    assert first != second
    assert stream == list(islice(repeat_shuffled(problems, seed=1), 40))


def test_sft_examples_bare_is_the_last_line_of_worked():
    worked, bare = (list(islice(sft_examples(kind, 3), 100)) for kind in ("worked", "bare"))
    assert [prompt for prompt, _ in worked] == [prompt for prompt, _ in bare]
    assert all(full.endswith("\n" + short) for (_, full), (_, short) in zip(worked, bare, strict=True))
    assert all(re.fullmatch(r"#### \d+", short) for _, short in bare)


def test_sft_examples_unknown_kind_raises():
    with pytest.raises(TaskError, match="guess"):
        next(sft_examples("guess", 0))
