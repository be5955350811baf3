from __future__ import annotations

import subprocess
import sys

import pytest

from tbactl.testing.engine_conformance import CHECKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


# In processes of their own, as searchers are: vLLM looks through every module that is loaded, stumbles over what other
# tests import, and changes the transformers classes of the architectures that it runs through transformers (GPT-NeoX).
@pytest.mark.fault("I-03", "I-12", "I-20", "I-22", "I-24", "I-25", "I-33", "I-34", "I-38", "R-02")
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt_neox"])
def test_vllm_engine_conforms(architecture: str, tmp_path) -> None:
    command = [sys.executable, "-m", "tests.support.conformance_process", "vllm", architecture, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    passed = [line.removeprefix("passed ") for line in done.stdout.splitlines() if line.startswith("passed ")]
    assert done.returncode == 0, f"passed {passed}, then: {done.stderr[-3000:]}"
    assert passed == [check.__name__ for check in CHECKS]
