"""Runs `run_to_end` in a process of its own, so that tests can send it signals: CONFIG.json SHM_ROOT [--resume RUN].

With --stand-ins the children are `stand_in.py`, without it the real `python -m tbactl.trainer` and `tbactl.searcher`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import TbactlError
from tbactl.supervision.run_directory import child_argv
from tbactl.supervision.supervisor import run_to_end


def stand_in_argv(process: ProcessConfig, path: Path) -> tuple[str, ...]:
    return (sys.executable, str(Path(__file__).with_name("stand_in.py")), "--config", str(path))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("shm_root", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--stand-ins", action="store_true")
    arguments = parser.parse_args()
    try:
        return run_to_end(
            RunConfig.model_validate_json(arguments.config.read_bytes()),
            recipe_name="test",
            profile="cpu",
            resume=arguments.resume,
            plain=True,
            argv_for=stand_in_argv if arguments.stand_ins else child_argv,
            shm_root=arguments.shm_root,
        )
    except TbactlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
