"""Tasks that misbehave: at import, at construction, in their prompts and in their rewards."""

from __future__ import annotations

from tests.bad_inputs.bad_tasks import install_rival
from tests.bad_inputs.case import CHILD, CONFIG, TASK, Case, case

SOON = "--set supervision.progress_timeout_s=5"
ONCE = "--set supervision.max_restarts=0"
ROW = '{"completion": "1", "gold": "1"}\n'


def score(name: str, task: str, exit_code: int, *says: str) -> Case:
    """A case of `tasks score` with a task of `bad_tasks.py`."""
    return case(name, f"tasks score {task} a.jsonl", exit_code, *says, files={"a.jsonl": ROW})


def planned(name: str, task: str, exit_code: int, *says: str) -> Case:
    """A case of a dry run with such a task."""
    return case(name, f"run ok.toml --dry-run --set task.kind={task}", exit_code, *says)


def run(name: str, task: str, exit_code: int, *says: str, more: str = "") -> Case:
    """A case of a real run with such a task."""
    return case(name, f"run ok.toml --plain --set task.kind={task} {more}", exit_code, *says, may_write=("runs",))


CASES = [
    planned("task-import-fails", "broken-import", CONFIG, "broken-import", "this package is for another machine"),
    planned("task-syntax-error", "broken-syntax", CONFIG, "broken-syntax", "bad_tasks_syntax"),
    planned("task-module-gone", "no-module", CONFIG, "no-module", "bad_tasks_that_are_gone"),
    planned("task-needs-package", "needs-package", CONFIG, "needs-package", "a_package_nobody_has"),
    planned("task-attribute-gone", "no-attribute", CONFIG, "no-attribute", "Gone"),
    planned("task-is-number", "number", CONFIG, "number"),
    planned("task-is-other-class", "methodless", CONFIG, "methodless", "prompts"),
    planned("task-file-gone-at-start", "refuses-to-start", CONFIG, "refuses-to-start", "/data/gold.jsonl"),
    planned("task-mistake-at-start", "raises-at-start", CONFIG, "raises-at-start", "KeyError"),
    planned("task-option-unknown", "too-few --set task.options.x=1", CONFIG, "task.options"),
    case(
        "task-name-claimed-twice",
        "run ok.toml --dry-run",
        CONFIG,
        "'math' is claimed by",
        "rival",
        "uninstall one",
        prepare=lambda directory: install_rival(directory),
        environment={"PYTHONPATH": "."},
    ),
    score("score-too-many", "too-few", TASK, "too-few", "2 rewards for 1 completion"),
    score("score-none", "nothing", TASK, "nothing", "list of Reward"),
    score("score-strings", "strings", TASK, "strings", "list of Reward"),
    score("score-nan", "not-a-number", TASK, "not-a-number", "nan"),
    score("score-text-value", "text-value", TASK, "text-value", "'1'"),
    score("score-raises", "raises", TASK, "raises", "KeyError", "the gold answer of this prompt"),
    score("score-exits", "exits", TASK, "exits"),
    score("score-prints-and-refuses", "loud", TASK, "download it again"),
    score("score-import-fails", "broken-import", TASK, "broken-import", "another machine"),
    case("check-import-fails", "tasks check broken-import", TASK, "broken-import", "another machine"),
    case("check-unknown", "tasks check mth", CONFIG, "did you mean 'math'"),
    run("run-score-too-many", "too-few", TASK, "too-few", "5 rewards for 4 completions"),
    run("run-score-nan", "not-a-number", CHILD, "the reward is nan, not a finite number", more=ONCE),
    run("run-score-raises", "raises", CHILD, "KeyError", "the gold answer of this prompt", more=ONCE),
    run("run-score-prints-and-refuses", "loud", TASK, "download it again"),
    run(
        "run-score-never-returns",
        "never-returns",
        TASK,
        "never-returns",
        "must limit its own time",
        more=SOON,
    ),
    run("run-score-kills-process", "dies", CHILD, "exit code 9", more=ONCE),
    run("run-without-prompts", "no-prompts", TASK, "must be an endless stream"),
    run("run-prompts-of-text", "prompts-of-text", TASK, "gave str; it must give Prompt"),
    run("run-prompts-raise", "prompts-raise", TASK, "ZeroDivisionError: division by zero", "bad_tasks.py"),
]
