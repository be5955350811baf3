from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_vllm_victim_answers_beside_a_vllm_attacker(tmp_path) -> None:
    command = [sys.executable, "-m", "tests.support.redteam_victim_process", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    passed = [line for line in done.stdout.splitlines() if line.startswith("passed")]
    assert done.returncode == 0, f"{passed}, then: {done.stderr[-3000:]}"
    assert len(passed) == 4
