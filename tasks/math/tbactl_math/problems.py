"""Math word problems as prompts: endless generated ones, and data sets from a file or the hub.

Each `Prompt` carries two facts: "answer", the final answer as a plain string, and "solution", the worked solution that
ends with the line `#### answer`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

from tbactl.errors import TaskError
from tbactl.types import Prompt
from tbactl_math.prompts import format_prompt

Difficulty = Literal["easy", "all"]

EASY_MAX_NUMBER = 100
EASY_MAX_SOLUTION_CHARACTERS = 300
SPLITS = ("train", "test")

_BLOCK_SIZE = 1000
_BLOCKS_PER_SEED = 2**20
_TEST_ONE_IN = 8
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_FINAL_ANSWER = re.compile(r"\n*####[ \t]*(?P<answer>\S[^\n]*)\s*\Z")
_CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")
# The generator ends every question with this; the prompt template already says what is asked for.
_GENERATOR_SUFFIX = " Give the result as your final answer. Do not include units."
# Columns of the data sets that are understood: question, answer, and the worked solution where it stands apart.
_COLUMNS = (("problem", "answer", "solution"), ("question", "answer"), ("input", "target"))


def generated_problems(split: str, *, seed: int, difficulty: Difficulty = "easy") -> Iterator[Prompt]:
    """Endless stream of reasoning-gym's `gsm_symbolic`: GSM8K templates with fresh names and numbers.

    The same for the same arguments, in every process. Two rules keep "train" and "test" apart. Rows are generated in
    blocks of 1,000 consecutive generator seeds; even blocks serve "train", odd ones "test". And since a template can
    give the same text for two seeds, the text decides as well: a problem is kept for "test" when the hash of its
    question falls into one class of eight, and for "train" otherwise, so no test question can occur in training.

    Args:
        split: "train" or "test".
        seed: chooses the stream, >= 0.
        difficulty: "easy" keeps the problems that `is_easy` (about one in six, 33 templates), "all" keeps every one.

    Raises:
        TaskError: the split, the seed or the difficulty is unknown.
    """
    _check_arguments(split, seed=seed, difficulty=difficulty)
    from reasoning_gym import create_dataset

    for block in count(seed * _BLOCKS_PER_SEED):
        first_row = (2 * block + SPLITS.index(split)) * _BLOCK_SIZE
        for row in create_dataset("gsm_symbolic", seed=first_row, size=_BLOCK_SIZE):
            question = row["question"].removesuffix(_GENERATOR_SUFFIX)
            solution = clean_solution(row["metadata"]["answer_cot"], answer=row["answer"])
            if solution is None or split_of(question) != split:
                continue
            if difficulty == "all" or is_easy(question, solution):
                yield _prompt(question, answer=row["answer"], solution=solution)


def is_easy(question: str, solution: str) -> bool:
    """Whether every number in question and solution is an integer <= 100 and the solution is short (< 300 characters).

    Digits with a decimal point or thousands commas are no integers; the two halves of a fraction count as two numbers.
    The final line `#### n` belongs to the solution.
    """
    if len(solution) >= EASY_MAX_SOLUTION_CHARACTERS:
        return False
    numbers = _NUMBER.findall(f"{question}\n{solution}")
    return all(number.rstrip(",").isdigit() and int(number.rstrip(",")) <= EASY_MAX_NUMBER for number in numbers)


def split_of(question: str) -> str:
    """The one split in which a generated question may occur: one text in eight belongs to "test"."""
    return "test" if text_id(question) % _TEST_ONE_IN == 0 else "train"


def text_id(question: str) -> int:
    """A number for a question, the same in every process; 52 bits, so that JSON readers keep it exact."""
    return int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big") >> 12


def clean_solution(text: str, *, answer: str) -> str | None:
    """A worked solution without blank lines and calculator notes (`<<2*3=6>>`), with `#### answer` as its last line.

    None when the text already ends with a final answer and that is another one than `answer`.
    """
    stated = _FINAL_ANSWER.search(text)
    if stated and _plain_number(stated["answer"]) != _plain_number(answer):
        return None
    body = _CALCULATOR_NOTE.sub("", text[: stated.start()] if stated else text)
    lines = [line.strip() for line in body.splitlines()]
    return "\n".join([*(line for line in lines if line), f"#### {answer}"])


def load_problems(source: str, *, split: str = "test") -> list[Prompt]:
    """All problems of a data set, in its order, as prompts.

    Understood are the columns of GSM8K (question, answer with `#### n`), of MATH (problem, solution, answer) and of
    plain pairs (input, target).

    Args:
        source: path of a JSON-lines file, or a hub name with an optional configuration, like "openai/gsm8k:main".
        split: split of the hub's data set; a file has only one.

    Raises:
        TaskError: there is no such data, it is empty, or a row lacks a question or an answer.
    """
    path = Path(source).expanduser()
    rows = _read_json_lines(path) if path.suffix in {".jsonl", ".json"} else _read_hub(source, split=split)
    problems = [_from_row(row, origin=f"{source}, row {number}") for number, row in enumerate(rows, start=1)]
    if not problems:
        raise TaskError(f"{source} holds no problems; give a JSON-lines file with one problem a line, or a hub name")
    return problems


def repeat_shuffled(problems: list[Prompt], *, seed: int) -> Iterator[Prompt]:
    """Endless passes over `problems`, each in its own order: the same for the same seed, in every process."""
    for epoch in count():
        order = list(problems)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        yield from order


def _check_arguments(split: str, *, seed: int, difficulty: str) -> None:
    if split not in SPLITS:
        raise TaskError(f'there is no split "{split}" of the generated problems; choose "train" or "test"')
    if difficulty not in ("easy", "all"):
        raise TaskError(f'difficulty "{difficulty}" is unknown; choose "easy" or "all"')
    if seed < 0:
        raise TaskError(f"the seed of a problem stream is {seed}; it must be 0 or more")


def _prompt(question: str, *, answer: str, solution: str) -> Prompt:
    facts = {"answer": answer, "solution": solution}
    return Prompt(prompt_id=text_id(question), text=format_prompt(question), facts=facts)


def _from_row(row: Mapping[str, Any], *, origin: str) -> Prompt:
    columns = next((columns for columns in _COLUMNS if all(column in row for column in columns)), None)
    if columns is None:
        expected = "; ".join(", ".join(columns) for columns in _COLUMNS)
        raise TaskError(f"{origin}: columns {', '.join(sorted(row))} are not understood; expected are {expected}")
    question, answer, *worked = (_cell_text(row[column]) for column in columns)
    solution = worked[0] if worked else ""
    stated = _FINAL_ANSWER.search(answer)
    if stated:  # GSM8K keeps the steps and the final answer in one column
        answer, solution = stated["answer"].strip().replace(",", ""), answer
    cleaned = clean_solution(solution, answer=answer)
    if not question or not answer or cleaned is None:
        raise TaskError(f"{origin}: the question or the answer is empty, or the solution ends with another answer")
    return _prompt(question, answer=answer, solution=cleaned)


def _cell_text(value: Any) -> str:
    if value is None or isinstance(value, bool | list | dict) or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _plain_number(text: str) -> float | str:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text.strip()


def _read_json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        # Not splitlines(): a text in JSON may hold other line separators.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise TaskError(f"cannot read the problems in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise TaskError(f"{path}, line {number} is {type(row).__name__}; each line must be a JSON object")
        yield row


def _read_hub(source: str, *, split: str) -> Iterable[Any]:
    from datasets import load_dataset

    name, _, configuration = source.partition(":")
    try:
        return load_dataset(name, configuration or None, split=split)
    except Exception as error:  # the hub's client raises many unrelated types for "not there" and "no network"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskError(
            f'cannot load "{source}" (split {split}) from the hub: {reason}; or give a .jsonl path'
        ) from error
