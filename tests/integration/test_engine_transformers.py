from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tbactl.config.engine import EngineConfig
from tbactl.engines import transformers_engine
from tbactl.engines.policy_files import load_tokenizer, stop_token_ids
from tbactl.engines.transformers_engine import TransformersEngine
from tbactl.testing.engine_conformance import CHECKS, EngineUnderTest
from tbactl.types import SamplingParams
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


@pytest.mark.fault("I-03", "I-12", "I-20", "I-22", "I-24", "I-25", "I-33", "I-34", "I-38", "R-02")
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


@pytest.mark.fault("R-03")
def test_text_holds_neither_padding_nor_special_tokens(under_test) -> None:
    completions = under_test.complete(under_test.prompts(4) * 4, SamplingParams(max_new_tokens=40))
    tokenizer = load_tokenizer(under_test.config)
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        plain = [i for i in completion.token_ids if i not in under_test.stop_ids]
        assert completion.text == tokenizer.decode(plain, skip_special_tokens=False)


@pytest.mark.fault("I-29")
def test_logprob_that_is_not_finite_costs_its_request_only(under_test) -> None:
    broken, whole = under_test.submit(under_test.prompts(2), SamplingParams(max_new_tokens=4, min_new_tokens=4))
    assert under_test.engine.step() == []
    under_test.engine._batch.rows[0].logprobs[0] = -math.inf
    finished = under_test.finish()
    assert finished[broken].completion is None and "not finite" in finished[broken].error
    assert finished[whole].error is None
