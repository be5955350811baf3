"""Every bad input of tests/bad_inputs: one clear message, the exit code of its kind, no traceback, nothing left behind.

`python -m tests.bad_inputs` prints the messages, for a person to read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tbactl.cli.main import COMMANDS
from tests.bad_inputs.case import Case, case
from tests.bad_inputs.running import Bench, problems_of
from tests.bad_inputs.table import ALL_CASES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bad_inputs"))
    yield bench
    bench.close()


@pytest.mark.parametrize("bad", [pytest.param(case, id=case.name) for case in ALL_CASES])
def test_bad_input_is_one_clear_error(bench: Bench, bad: Case):
    outcome = bench.try_case(bad)
    assert problems_of(bad, outcome) == [], outcome.stderr


def test_there_are_many_bad_inputs_for_every_command():
    assert len(ALL_CASES) >= 150
    first_words = {word for case in ALL_CASES for word in case.command.split()[:1]}
    assert set(COMMANDS) <= first_words | {"tbactl"}


def test_judge_finds_what_is_wrong(bench: Bench):
    good = case("no-mistake", "recipes show ok.toml", 0)
    assert problems_of(good, bench.try_case(good)) == ["0 error messages instead of one"]
    lying = case("wrong-words", "run nowhere.toml", 4, "no such words")
    found = problems_of(lying, bench.try_case(lying))
    assert found == ["exit code 3 instead of 4", "the message lacks 'no such words'"]
    telling = case("secret", f"run {'$'}HF_TOKEN", 3)
    assert problems_of(telling, bench.try_case(telling)) == []
    writing = case("writes", "run ok.toml --dry-run", 3)
    assert any(
        problem.startswith("written or changed: runs") for problem in problems_of(writing, bench.try_case(writing))
    )


def test_secrets_of_the_environment_are_nowhere_in_a_run(bench: Bench):
    outcome = bench.try_case(case("watched", "watch r --plain", 0, has_run=True))
    assert outcome.exit_code == 0 and not outcome.holds_secret
