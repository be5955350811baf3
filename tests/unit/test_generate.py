from __future__ import annotations

from pathlib import Path

from tbactl.config.engine import EngineConfig
from tbactl.engines.generate import generate
from tbactl.testing.fake_engine import FakeEngine
from tbactl.types import Prompt, SamplingParams

SAMPLING = SamplingParams(max_new_tokens=8)


def test_longer_prompts_than_are_allowed_are_unanswered_though_the_engine_would_take_them(caplog):
    engine = FakeEngine(EngineConfig(policy_directory=Path("unused"), max_model_tokens=64))
    short, long = (Prompt(prompt_id=i, text="x" * length) for i, length in enumerate((20, 21)))
    assert len(engine.encode(long.text)) > len(engine.encode(short.text))
    limit = len(engine.encode(short.text))
    answers = generate(engine, [long, short, long], 2, SAMPLING, max_prompt_tokens=limit)
    reasons = [{completion.finish_reason for completion in row} for row in answers]
    assert reasons[0] == reasons[2] == {"abort"} and "abort" not in reasons[1]
    assert [len(row) for row in answers] == [2, 2, 2]
    assert "num_failed=4 of 6" in caplog.text and "num_refused=4" in caplog.text
    assert all(row[0].finish_reason != "abort" for row in generate(engine, [long, short], 1, SAMPLING))


def test_nothing_but_prompts_that_are_too_long_ends_at_once():
    engine = FakeEngine(EngineConfig(policy_directory=Path("unused"), max_model_tokens=64))
    [[answer]] = generate(engine, [Prompt(prompt_id=0, text="x" * 30)], 1, SAMPLING, max_prompt_tokens=2)
    assert (answer.token_ids, answer.finish_reason) == ((), "abort")
