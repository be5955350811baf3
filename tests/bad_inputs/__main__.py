"""`python -m tests.bad_inputs [WORD]...`: tries all cases, or those named by a word, and prints every message."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bad_inputs.running import Bench, problems_of
from tests.bad_inputs.table import ALL_CASES


def main(words: list[str]) -> int:
    """Print a paragraph for each case; 1 when anything is not as it must be."""
    chosen = [case for case in ALL_CASES if not words or any(word in case.name for word in words)]
    num_wrong = 0
    with tempfile.TemporaryDirectory(prefix="tbactl-bad-inputs-") as root:
        bench = Bench(Path(root))
        try:
            for case in chosen:
                outcome = bench.try_case(case)
                message = outcome.stderr.replace(root, "").strip() or "(nothing)"
                print(
                    f"{case.name} | {case.command[:100]!r} | exit {outcome.exit_code}\n    {message[:700]}", flush=True
                )
                problems = problems_of(case, outcome)
                num_wrong += bool(problems)
                for problem in problems:
                    print(f"    !! {problem}", flush=True)
        finally:
            bench.close()
    print(f"{len(chosen)} bad inputs, {num_wrong} not as they must be")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
