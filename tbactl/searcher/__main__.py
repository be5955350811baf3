"""`python -m tbactl.searcher --config FILE`: one searcher; exit code by kind of failure."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tbactl.config.layout import ProcessConfig
from tbactl.errors import TbactlError
from tbactl.ipc.child import bind_to_cores, die_with_parent, run_and_leave


def main() -> int:
    """Run as configured."""
    parser = argparse.ArgumentParser(prog="python -m tbactl.searcher")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    config = ProcessConfig.model_validate_json(arguments.config.read_bytes())
    bind_to_cores(config.cores)  # before any library counts them
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    from tbactl.searcher.run import run_searcher

    try:
        run_searcher(config)
    except TbactlError as error:
        logging.getLogger("tbactl.searcher").error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    run_and_leave(main)
