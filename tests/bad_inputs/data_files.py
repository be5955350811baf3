"""Data files: of problems, documents, comparisons, attacks and answers to be audited."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.bad_inputs.case import CHECKPOINT, CONFIG, TASK, Case, case

GOOD_ROW = json.dumps({"question": "What is 1 + 1?", "answer": "#### 2"})
GOOD_AUDIT = json.dumps({"completion": "#### 2", "gold": "2"})
EVAL = "eval r --task math --engine fake --data p.jsonl"
SCORE = "tasks score math a.jsonl"
REWARD = "reward train r.toml --set data.source="
REWARD_RECIPE = 'kind = "reward"\n[data]\nsource = "pairs.jsonl"\n'
PREFERENCE = "tasks score preference a.jsonl --set documents=d.jsonl --set reward_model=rouge-l"


def problems(name: str, content: str | bytes, *says: str) -> Case:
    """A case of `--data` of an evaluation."""
    return case(name, EVAL, TASK, "p.jsonl", *says, files={"p.jsonl": content}, has_run=True)


def audit(name: str, content: str | bytes, *says: str) -> Case:
    """A case of `tasks score`."""
    return case(name, SCORE, TASK, "a.jsonl", *says, files={"a.jsonl": content})


def comparisons(name: str, file: str, content: str | bytes, *says: str) -> Case:
    """A case of `reward train`."""
    files = {"r.toml": REWARD_RECIPE, file: content}
    return case(name, f"{REWARD}{file}", TASK, file, *says, files=files, may_write=("runs",))


def pairs(*rows: object) -> str:
    """JSONL."""
    return "".join(json.dumps(row) + "\n" for row in rows)


PROBLEMS = [
    case("problems-missing", EVAL, CONFIG, "p.jsonl: there is no such file", has_run=True),
    case("problems-directory", EVAL, CONFIG, "p.jsonl", has_run=True, prepare=lambda d: (d / "p.jsonl").mkdir()),
    problems("problems-empty", "", "holds no problems"),
    problems("problems-blank", "\n \n\n", "holds no problems"),
    problems("problems-binary", bytes(range(256)), "not UTF-8"),
    problems("problems-latin-1", '{"question": "caf\u00e9", "answer": "1"}'.encode("latin-1"), "not UTF-8"),
    problems("problems-utf-16", GOOD_ROW.encode("utf-16"), "not UTF-8"),
    problems("problems-line-3-broken", f"{GOOD_ROW}\n{GOOD_ROW}\n{{\n", "line 3"),
    problems("problems-line-3-list", f"{GOOD_ROW}\n{GOOD_ROW}\n[1]\n", "line 3", "object"),
    problems("problems-line-3-null", f"{GOOD_ROW}\n{GOOD_ROW}\nnull\n", "line 3"),
    problems("problems-missing-column", pairs({"question": "1 + 1?"}), "row 1", "question, answer"),
    problems("problems-other-columns", pairs({"q": "1", "a": "2"}), "columns a, q are not understood"),
    problems("problems-null-answer", pairs({"question": "1 + 1?", "answer": None}), "row 1", "answer"),
    problems("problems-list-answer", pairs({"question": "1 + 1?", "answer": [2]}), "row 1", "answer"),
    problems("problems-empty-question", pairs({"question": "", "answer": "2"}), "row 1", "empty"),
    problems("problems-nan-answer", '{"question": "1 + 1?", "answer": NaN}\n', "row 1"),
    problems("problems-number-of-9000-digits", f'{{"question": "?", "answer": {"9" * 9000}}}\n', "line 1"),
    problems("problems-nested", "[" * 100_000 + "\n", "line 1"),
    problems("problems-contradiction", pairs({"problem": "?", "answer": "2", "solution": "#### 3"}), "another answer"),
    problems("problems-one-json-array", json.dumps([{"question": "?", "answer": "1"}]), "line 1", "object"),
    problems("problems-csv", "question,answer\n1+1,2\n", "line 1", "not JSON"),
    problems("problems-line-of-20-mb", '{"question": "' + "x" * 20_000_000, "line 1"),
]
AUDITS = [
    case("audit-missing", SCORE, TASK, "a.jsonl", "No such file"),
    case("audit-directory", "tasks score math .", TASK, "Is a directory"),
    case("audit-device", "tasks score math /dev/null", TASK, "/dev/null"),
    case("audit-unknown-task", "tasks score maths a.jsonl", CONFIG, "did you mean 'math'"),
    case("audit-unknown-option", f"{SCORE} --set x=1", CONFIG, "x", files={"a.jsonl": GOOD_AUDIT}),
    case("audit-option-without-value", f"{SCORE} --set x", CONFIG, "--set", files={"a.jsonl": GOOD_AUDIT}),
    audit("audit-empty", "", "no rows"),
    audit("audit-binary", b"\xff\xfe\0", "cannot be read"),
    audit("audit-broken-line", f"{GOOD_AUDIT}\n{GOOD_AUDIT}\n{{x}}\n", "a.jsonl:3", "not JSON"),
    audit("audit-list", "[1]\n", "a.jsonl:1", "must be an object"),
    audit("audit-without-completion", pairs({"gold": "1"}), "a.jsonl:1", '"completion" must be there'),
    audit("audit-null-completion", pairs({"completion": None, "gold": "1"}), '"completion" must be there'),
    audit("audit-without-gold", pairs({"completion": "1"}), '"gold" must be there'),
    audit("audit-bool-gold", pairs({"completion": "1", "gold": True}), '"gold" must be there'),
    audit("audit-text-for-bool", pairs({"completion": "1", "gold": "1", "correct": "yes"}), "true or false"),
    audit("audit-number-prompt", pairs({"completion": "1", "gold": "1", "prompt": 1}), '"prompt" must be a string'),
    audit("audit-nested", "[" * 100_000, "a.jsonl:1", "not JSON"),
    audit("audit-number-of-9000-digits", f'{{"completion": "1", "gold": {"9" * 9000}}}', "a.jsonl:1", "not JSON"),
    audit("audit-lone-surrogate", '{"completion": "\\ud800", "gold": 1, "correct": 1}', "a.jsonl:1"),
]
COMPARISONS = [
    comparisons("pairs-empty", "p.jsonl", ""),
    comparisons("pairs-binary", "p.jsonl", b"\xff\xfe"),
    comparisons("pairs-line-2-broken", "p.jsonl", pairs({"chosen": "a b", "rejected": "a c"}) + "{\n", "line 2"),
    comparisons("pairs-missing-column", "p.jsonl", pairs({"chosen": "a"}), "no column 'rejected'"),
    comparisons("pairs-misspelt-column", "p.jsonl", pairs({"chosen": "a", "rejcted": "b"}), "did you mean 'rejcted'"),
    comparisons("pairs-null-cell", "p.jsonl", pairs({"chosen": "a", "rejected": None}), "row 1"),
    comparisons("pairs-number-of-9000-digits", "p.jsonl", f'{{"chosen": {"9" * 9000}}}\n', "line 1"),
    comparisons("pairs-gzip-that-is-none", "p.jsonl.gz", "plain text"),
    comparisons("pairs-gzip-cut", "p.jsonl.gz", gzip.compress(b"x" * 1000)[:30]),
    comparisons("pairs-gzip-flipped", "p.jsonl.gz", gzip.compress(b"{}\n" * 9)[:-9] + b"\xff" * 9),
    comparisons("pairs-parquet-that-is-none", "p.parquet", "plain text"),
    comparisons("pairs-parquet-cut", "p.parquet", b"PAR1" + b"\0" * 50),
    comparisons("pairs-parquet-empty", "p.parquet", b""),
    case(
        "pairs-missing",
        f"{REWARD}./p.jsonl",
        CONFIG,
        "p.jsonl': there is no such file",
        files={"r.toml": REWARD_RECIPE},
        may_write=("runs",),
    ),
    case(
        "pairs-unknown-suffix",
        f"{REWARD}./p.csv",
        TASK,
        "'./p.csv'",
        "give a .jsonl, .jsonl.gz, .parquet path",
        files={"r.toml": REWARD_RECIPE},
        may_write=("runs",),
    ),
]
OTHERS = [
    case("documents-missing", PREFERENCE, CONFIG, "d.jsonl", "no such file"),
    case(
        "reward-model-missing",
        "tasks score preference a.jsonl --set reward_model=./nowhere",
        CONFIG,
        "reward_model = './nowhere'",
    ),
    case(
        "attacks-missing",
        "run ok.toml --dry-run --set task.kind=redteam --set task.options={} --set task.options.data=./x.jsonl",
        CONFIG,
        "x.jsonl",
    ),
    case(
        "victim-url-with-password",
        "run ok.toml --dry-run --set task.kind=redteam --set task.options.victim.kind=http "
        "--set task.options.victim.model=m "
        "--set task.options.victim.url=https://me:hunter2@example.org/v1",
        CONFIG,
        "url",
    ),
]


def _not_a_model(directory: Path) -> None:
    (directory / "m").mkdir()
    (directory / "m" / "config.json").write_text("{}")


def _cut_model(directory: Path) -> None:
    _not_a_model(directory)
    (directory / "m" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2}')
    (directory / "m" / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")


MODELS = [
    case("model-of-unknown-type", "eval ./m --task math --engine transformers", CONFIG, "m", prepare=_not_a_model),
    case("model-cut", "eval ./m --task math --engine transformers", CONFIG, "m", prepare=_cut_model),
    case(
        "model-is-pickle",
        "eval ./m --task math --engine transformers",
        CHECKPOINT,
        "m",
        files={"m/pytorch_model.bin": b"\x80\x04N.", "m/readme": ""},
    ),
]
CASES = [*PROBLEMS, *AUDITS, *COMPARISONS, *OTHERS, *MODELS]
