"""`python -m tbactl.chaos.supervise CASE SHM [--resume RUN]`: the supervisor of a case, as `tbactl run` is of a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from tbactl.chaos.clock_jump import jump_when_armed
from tbactl.chaos.faults import Fault
from tbactl.chaos.settings import CaseLayout, resumed_config
from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import CapacityError, TbactlError, is_out_of_space
from tbactl.ipc.child import die_with_parent
from tbactl.supervision.supervisor import run_to_end


def main() -> int:
    """Run the case's configuration; returns the exit code that `tbactl run` would have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", type=Path)
    parser.add_argument("shm_root", type=Path)
    parser.add_argument("--resume", type=Path)
    arguments = parser.parse_args()
    die_with_parent()
    layout = CaseLayout(arguments.case)
    fault = msgspec.json.decode(layout.fault.read_bytes(), type=Fault)
    if fault.kind == "clock-jump" and fault.target == "supervisor" and arguments.resume is None:
        jump_when_armed(layout)

    def argv(process: ProcessConfig, path: Path) -> tuple[str, ...]:
        fault_options = () if arguments.resume else ("--with-fault",)
        return (sys.executable, "-m", "tbactl.chaos.child", str(arguments.case), str(path), *fault_options)

    config = RunConfig.model_validate_json(layout.config.read_bytes())
    try:
        return run_to_end(
            config if arguments.resume is None else resumed_config(config),
            recipe_name="chaos",
            profile="cpu",
            resume=arguments.resume,
            plain=True,
            argv_for=argv,
            shm_root=arguments.shm_root,
        )
    except TbactlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if not is_out_of_space(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return CapacityError.exit_code


if __name__ == "__main__":
    sys.exit(main())
