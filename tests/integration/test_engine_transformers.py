from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tbactl.config.engine import EngineConfig
from tbactl.engines import transformers_engine
from tbactl.engines.policy_files import load_tokenizer, stop_token_ids
from tbactl.engines.transformers_engine import TransformersEngine
from tbactl.testing.engine_conformance import CHECKS, EngineUnderTest
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.weights_file import write_safetensors
from tests.support.tiny_policy import make_tiny_policy


@pytest.fixture(scope="module", params=["llama", "gpt_neox"])
def under_test(request, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("weights")
    policy = make_tiny_policy(scratch / "policy", architecture=request.param, eos_bias=1.5)
    config = EngineConfig(policy_directory=policy, max_model_tokens=192, max_concurrent_sequences=48, cores=(0,))
    stop_ids = stop_token_ids(config.policy_directory, load_tokenizer(config), trust_remote_code=False)
    under_test = EngineUnderTest(TransformersEngine, config=config, stop_ids=stop_ids, scratch=scratch)
    yield under_test
    under_test.engine.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_transformers_engine_conforms(check: Callable[[EngineUnderTest], None], under_test) -> None:
    check(under_test)


def test_version_removed_while_it_is_loaded_is_loaded_whole(under_test, tmp_path, monkeypatch) -> None:
    path = tmp_path / "weights.safetensors"
    write_safetensors(path, under_test.state)
    published = fingerprint(path)

    def remove(weights: Path, **shapes) -> None:
        path.unlink()  # as the publisher may, at any time

    monkeypatch.setattr(transformers_engine, "check_shapes", remove)
    assert under_test.engine.load_policy(path, version=90_000) == published
    with pytest.raises(FileNotFoundError):
        under_test.engine.load_policy(path, version=90_001)
    assert under_test.engine.policy_version == 90_000
