"""An engine takes what a trainer published, and says what it computes: `... ENGINE POLICY FOLDER...` prints JSON lines.

In a process of its own for vLLM, which does not share one well with what trains.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tbactl import registry
from tbactl.clock import SystemClock
from tbactl.config.engine import EngineConfig
from tbactl.protocols import Engine, GenerationRequest
from tbactl.types import SamplingParams
from tbactl.weight_sync.subscriber import Subscriber

PROMPT = (5, 6, 7, 8)
NUM_TOKENS = 12


def take_weights(engine: Engine, policy: Path, weights: Path, *, limit: float) -> dict[str, Any]:
    """Load the newest version; what the searcher would report, and greedy output before and after."""
    subscriber = Subscriber(weights, policy_directory=policy, max_logprob_difference=limit, clock=SystemClock())
    published = subscriber.newest()
    assert published is not None
    before = engine.sequence_logprobs(published.probe)
    greedy_before = greedy(engine, name=f"before-{published.version}")
    report = subscriber.load(published, engine=engine)
    assert report is not None
    return {
        "version": engine.policy_version,
        "before": before,
        "after": engine.sequence_logprobs(published.probe),
        "trainer": published.probe_logprobs,
        "greedy_before": greedy_before,
        "greedy": greedy(engine, name=f"after-{published.version}"),
        "alarms": report.alarms,
        "fingerprint": report.fingerprint,
        "published_fingerprint": published.fingerprint,
        "difference": report.max_logprob_difference,
    }


def greedy(engine: Engine, *, name: str) -> tuple[int, ...]:
    """The most likely completion of a prompt."""
    sampling = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, min_new_tokens=NUM_TOKENS)
    engine.submit(GenerationRequest(request_id=name, prompt_token_ids=PROMPT, sampling=sampling))
    while True:
        for finished in engine.step():
            assert finished.completion is not None
            return finished.completion.token_ids


def make_engine(name: str, policy: Path, *, dtype: Any = "float32") -> Engine:
    """An engine of the initial policy."""
    config = EngineConfig(policy_directory=policy, dtype=dtype, max_model_tokens=64, max_concurrent_sequences=4)
    return registry.load("tbactl.engines", name)(config)


def main() -> None:
    engine = make_engine(sys.argv[1], Path(sys.argv[2]))
    for folder in sys.argv[3:]:
        print("report " + json.dumps(take_weights(engine, Path(sys.argv[2]), Path(folder), limit=1e-3)), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
