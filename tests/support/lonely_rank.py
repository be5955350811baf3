"""One trainer rank of two, alone: `python -m tests.support.lonely_rank INDEX DIRECTORY`. A process of its own, since
torch.distributed keeps the first group that a process makes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import ChildFailedError
from tbactl.trainer.ranks import RankGroup


def main(index: int, directory: Path) -> None:
    run = {
        "name": "t",
        "task": {"kind": "fake"},
        "policy": {"path": "p"},
        "trainer": {"num_ranks": 2},
        "supervision": {"start_timeout_s": 1.0, "progress_timeout_s": 1.0},
    }
    config = ProcessConfig(
        role="trainer",
        index=index,
        run=RunConfig.model_validate(run),
        run_directory=directory,
        shm_directory=directory,
        policy_directory=directory,
    )
    try:
        RankGroup(config, device=torch.device("cpu"))
    except ChildFailedError as error:
        print(error)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
