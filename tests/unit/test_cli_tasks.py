import json

import pytest

from tbactl.cli.audit import audit_rewards
from tbactl.cli.main import main
from tbactl.errors import TaskError
from tbactl.types import Reward


class ContainsAnswer:
    """A task whose reward is 1 when the gold answer stands in the completion."""

    name = "contains"

    def score(self, prompt, completions):
        gold = prompt.facts["answer"]
        return [
            Reward(value=float(gold in c.text), reason=f"looked for {gold}", metrics={"length": float(len(c.text))})
            for c in completions
        ]


def write_rows(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_audit_gives_rewards_with_reasons_and_totals(tmp_path):
    file = write_rows(
        tmp_path / "rows.jsonl",
        {"completion": "it is 72", "gold": "72", "correct": True},
        "\n",
        {"completion": "it is 71", "gold": 72, "correct": True},
        {"completion": "it is 7", "gold": "7"},
    )
    audit = audit_rewards(ContainsAnswer(), file, threshold=0.5)
    assert [row.line for row in audit.rows] == [1, 3, 4]
    assert [row.reward for row in audit.rows] == [1.0, 0.0, 1.0]
    assert [row.agrees for row in audit.rows] == [True, False, None]
    assert audit.rows[1].reason == "looked for 72"
    assert (audit.num_agreeing, audit.num_disagreeing, audit.num_errors) == (1, 1, 0)
    assert audit.mean_reward == pytest.approx(2 / 3)
    lengths = [len(row.completion) for row in audit.rows]
    assert audit.mean_metrics == audit.as_document()["mean_metrics"] == {"length": pytest.approx(sum(lengths) / 3)}


def test_scoring_error_never_agrees_with_correct(tmp_path):
    class Failing:
        name = "failing"

        def score(self, prompt, completions):
            return [Reward(value=1.0, error="time limit") for _ in completions]

    file = write_rows(tmp_path / "rows.jsonl", {"completion": "x", "gold": "1", "correct": True})
    audit = audit_rewards(Failing(), file, threshold=0.5)
    assert (audit.num_disagreeing, audit.num_errors) == (1, 1)


def test_wrong_number_of_rewards_is_an_error_that_names_the_task(tmp_path):
    class Silent:
        name = "silent"

        def score(self, prompt, completions):
            return []

    file = write_rows(tmp_path / "rows.jsonl", {"completion": "x", "gold": "1"})
    with pytest.raises(TaskError, match=r"task 'silent': score\(\) returned 0 rewards for 1 completions"):
        audit_rewards(Silent(), file, threshold=0.5)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("{oops\n", "not JSON"),
        ("[" * 100_000 + "\n", "not JSON"),
        ([1], "a row must be an object"),
        ({"gold": "1"}, '"completion" must be there'),
        ({"completion": 3, "gold": "1"}, '"completion" must be there'),
        ({"completion": "x"}, '"gold" must be there'),
        ({"completion": "x", "gold": True}, '"gold" must be there'),
        ({"completion": "x", "gold": "1", "correct": "yes"}, '"correct" must be true or false'),
        ({"completion": "x", "gold": "1", "prompt": 3}, '"prompt" must be a string'),
    ],
)
def test_malformed_row_is_named_by_line(tmp_path, row, sentence):
    file = write_rows(tmp_path / "rows.jsonl", {"completion": "x", "gold": "1"}, row)
    with pytest.raises(TaskError) as caught:
        audit_rewards(ContainsAnswer(), file, threshold=0.5)
    assert str(caught.value).startswith(f"{file}:2: ")
    assert sentence in str(caught.value)


def test_all_malformed_rows_are_named_up_to_ten(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", *(["{\n"] * 12))
    with pytest.raises(TaskError) as caught:
        audit_rewards(ContainsAnswer(), file, threshold=0.5)
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "... and 2 more"


@pytest.mark.parametrize("content", [None, "", "\xff"])
def test_missing_empty_or_binary_file_is_a_task_error(tmp_path, content):
    file = tmp_path / "rows.jsonl"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(TaskError):
        audit_rewards(ContainsAnswer(), file, threshold=0.5)


def test_tasks_score_exits_4_on_a_malformed_file(tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", "{\n")
    assert main(["tasks", "score", "fake", str(file)]) == 4
    assert "rows.jsonl:1:" in capsys.readouterr().err


def test_tasks_list_names_every_task_with_its_options(capsys):
    assert main(["tasks", "list", "--all", "--json"]) == 0
    tasks = {task["name"]: task for task in json.loads(capsys.readouterr().out)}
    assert tasks["fake"]["description"]
    assert isinstance(tasks["fake"]["options"], dict)
    assert main(["tasks", "list"]) == 0
    assert "fake" not in capsys.readouterr().out.split()


def test_tasks_check_passes_for_the_fake_task(capsys):
    assert main(["tasks", "check", "fake"]) == 0
    assert capsys.readouterr().out == "fake: ok\n"


def test_tasks_check_of_an_unknown_task_exits_3(capsys):
    assert main(["tasks", "check", "fakee"]) == 3
    assert "did you mean 'fake'?" in capsys.readouterr().err


def test_refused_task_option_exits_3(tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", {"completion": "x", "gold": "1"})
    assert main(["tasks", "score", "fake", str(file), "--set", "no_such_option=1"]) == 3
    assert "no_such_option" in capsys.readouterr().err


def test_threshold_that_is_no_number_is_a_usage_error(tmp_path):
    assert main(["tasks", "score", "fake", "rows.jsonl", "--threshold", "nan"]) == 2
