"""`python -m tbactl.evaluation --config FILE`: the result as one JSON line on standard output, or why there is none."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from tbactl.config.evaluation import EvaluationConfig
from tbactl.errors import TbactlError
from tbactl.ipc.child import die_with_parent, report, run_and_leave


def main() -> int:
    """Evaluate as configured; exit code by kind of failure."""
    parser = argparse.ArgumentParser(prog="python -m tbactl.evaluation")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    # Libraries print to stdout as they like; the result must stand there alone.
    result_stream = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    try:
        from tbactl.evaluation.evaluate import evaluate

        config = EvaluationConfig.model_validate_json(arguments.config.read_bytes())
        result = evaluate(config)
    except TbactlError as error:
        report(str(error))
        result_stream.write(f"{error}\n")
        result_stream.flush()
        return error.exit_code
    result_stream.write(json.dumps(result) + "\n")
    result_stream.flush()
    return 0


if __name__ == "__main__":
    run_and_leave(main)
