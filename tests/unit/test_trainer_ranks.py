from __future__ import annotations

import time

import pytest
import torch

from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import ChildFailedError
from tbactl.trainer.ranks import RankGroup


@pytest.mark.fault("I-15")
@pytest.mark.parametrize("index", [0, 1])
def test_rank_that_the_others_do_not_meet_ends_in_time(tmp_path, index):
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
        run_directory=tmp_path,
        shm_directory=tmp_path,
        policy_directory=tmp_path,
    )
    started_s = time.monotonic()
    with pytest.raises(ChildFailedError, match=rf"trainer rank {index}: the 2 ranks did not meet within"):
        RankGroup(config, device=torch.device("cpu"))
    assert time.monotonic() - started_s < 10.0
