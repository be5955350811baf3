"""What supervised training of a math policy learns from."""

from __future__ import annotations

from collections.abc import Iterator

from tbactl.errors import TaskError
from tbactl_math.problems import Difficulty, generated_problems

# "worked" writes the steps out; "bare" only states the final answer.
KINDS = ("worked", "bare")


def sft_examples(kind: str, seed: int, *, difficulty: Difficulty = "easy") -> Iterator[tuple[str, str]]:
    """Endless (prompt text, completion text) pairs from the generated training problems.

    Args:
        kind: "worked" (the steps, then the line `#### n`) or "bare" (`#### n` alone).
        seed: chooses the stream of problems.
        difficulty: as in `generated_problems`.

    Raises:
        TaskError: the kind is unknown.
    """
    if kind not in KINDS:
        raise TaskError(f'the math task has no examples of kind "{kind}"; it offers {", ".join(KINDS)}')
    for problem in generated_problems("train", seed=seed, difficulty=difficulty):
        worked = problem.facts["solution"]
        yield problem.text, worked if kind == "worked" else worked.splitlines()[-1]
