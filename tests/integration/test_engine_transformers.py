from __future__ import annotations

from collections.abc import Callable

import pytest

from tbactl.config.engine import EngineConfig
from tbactl.engines.policy_files import load_tokenizer, stop_token_ids
from tbactl.engines.transformers_engine import TransformersEngine
from tbactl.testing.engine_conformance import CHECKS, EngineUnderTest
from tests.support.tiny_policy import make_tiny_policy


@pytest.fixture(scope="module", params=["llama", "gpt_neox"])
def under_test(request, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("weights")
    policy = make_tiny_policy(scratch / "policy", architecture=request.param, eos_bias=1.5)
    config = EngineConfig(policy_directory=policy, max_model_tokens=192, max_concurrent_sequences=48, cores=(0,))
    stop_ids = stop_token_ids(config, load_tokenizer(config))
    under_test = EngineUnderTest(TransformersEngine, config=config, stop_ids=stop_ids, scratch=scratch)
    yield under_test
    under_test.engine.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_transformers_engine_conforms(check: Callable[[EngineUnderTest], None], under_test) -> None:
    check(under_test)
