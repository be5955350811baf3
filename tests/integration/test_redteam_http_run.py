"""A red-team run against a badly behaved endpoint: real processes, fake engine and learner, a server on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.endpoint_stub import EndpointStub, Reply, chat
from tests.support.supervised_run import FAKE_SEARCHERS, supervised_run

KEY = "sk-very-secret-0123456789"
NUM_STEPS = 6
pytestmark = pytest.mark.slow


def badly(number: int, _: dict[str, Any]) -> Reply:
    """Slow, failing, cut short, too long; it repeats the key where it answers."""
    replies = [
        chat(f"what a damn stupid key {KEY}"),
        Reply(status=500, body=f"no good: {KEY}".encode()),
        chat("slow", delay_s=0.3),
        chat("cut off in the middle", cut_after=20),
        chat("a" * 2_000_000),
    ]
    return replies[number % len(replies)]


def sections(url: str) -> dict[str, dict[str, Any]]:
    victim = {
        "kind": "http", "url": url, "model": "m", "api_key_env": "VICTIM_KEY", "num_answers": 2, "max_retries": 0,
        "max_consecutive_failures": 1000,
    }  # fmt: skip
    # The fake engine writes letters without spaces.
    options = {"victim": victim, "judge": "none", "min_words": 1, "min_new_tokens": 1}
    return {
        "task": {"kind": "redteam", "options": options},
        "policy": {"path": "fake"},
        "searchers": FAKE_SEARCHERS | {"num_searchers": 1, "max_prompt_tokens": 1024},
        "trainer": {"kind": "fake", "max_steps": NUM_STEPS, "prompts_per_step": 1, "completions_per_prompt": 4},
        "replay": {"initial_trajectories": 8, "capacity_per_prompt": 100, "capacity": 100},
        "logging": {"tensorboard": False},
    }


def test_a_run_goes_on_whatever_the_endpoint_does_counts_it_and_leaves_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VICTIM_KEY", KEY)
    with EndpointStub(badly) as stub, supervised_run(tmp_path, stand_ins=False, **sections(stub.url)) as run:
        assert run.wait() == 0, run.text
        run.assert_nothing_left()
    assert {request.headers["Authorization"] for request in stub.requests} == {f"Bearer {KEY}"}
    lines = [json.loads(line) for line in run.layout.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, NUM_STEPS + 1))
    assert 0.0 < lines[-1]["metrics"]["searcher/reward_answers_missing/mean"] <= 2.0
    assert lines[-1]["metrics"]["intake/failed_completions/total"] > 0, "attacks without any answer are dropped"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("victim failed_requests" in path.read_text(errors="replace") for path in files if path.suffix == ".log")
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
