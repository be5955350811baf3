from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tbactl.config.engine import EngineConfig
from tbactl.engines.policy_files import load_tokenizer, stop_token_ids
from tbactl.testing.engine_conformance import CHECKS, EngineUnderTest
from tests.support.tiny_policy import make_tiny_policy

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def under_test(request, tmp_path_factory):
    from tbactl.engines.vllm_engine import VllmEngine

    scratch = tmp_path_factory.mktemp("weights")
    policy = make_tiny_policy(scratch / "policy", architecture=request.param, eos_bias=1.5)
    config = EngineConfig(policy_directory=policy, max_model_tokens=192, max_concurrent_sequences=48, cores=(0,))
    stop_ids = stop_token_ids(config, load_tokenizer(config))
    under_test = EngineUnderTest(VllmEngine, config=config, stop_ids=stop_ids, scratch=scratch)
    yield under_test
    under_test.engine.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_vllm_engine_conforms(check: Callable[[EngineUnderTest], None], under_test) -> None:
    check(under_test)


def test_vllm_engine_conforms_with_an_architecture_it_runs_through_transformers(tmp_path) -> None:
    command = [sys.executable, "-m", "tests.support.conformance_process", "vllm", "gpt_neox", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    passed = [line for line in done.stdout.splitlines() if line.startswith("passed")]
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(passed) == len(CHECKS)
