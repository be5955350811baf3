from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.fault("I-15")
@pytest.mark.parametrize("index", [0, 1])
def test_rank_that_the_others_do_not_meet_ends_in_time(tmp_path, index):
    argv = [sys.executable, "-m", "tests.support.lonely_rank", str(index), str(tmp_path)]
    # Its limits are one second; the rest is for imports on a busy machine.
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=200.0, check=True)
    assert f"trainer rank {index}: the 2 ranks did not meet within" in ended.stdout
    assert f"rank {1 - index} did not come" in ended.stdout
