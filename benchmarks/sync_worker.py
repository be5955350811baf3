"""One process of a weight sync for benchmarks/ipc.py: `trainer` publishes a version, `searcher` waits for it and loads.

python -m benchmarks.sync_worker trainer|searcher DIRECTORY SHAPE DESCRIPTOR
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.measuring import serve
from benchmarks.training_work import gsm8k_run
from tbactl.clock import SystemClock
from tbactl.config.engine import EngineConfig
from tbactl.config.layout import ProcessConfig, ShmLayout
from tbactl.protocols import ProbeBatch
from tbactl.supervision.policy import resolve_policy
from tbactl.weight_sync.published import weights_path
from tbactl.weight_sync.publisher import publish
from tbactl.weight_sync.subscriber import Subscriber

PROBE_LENGTH, PROBE_PROMPT = 173, 76
LIMIT_S = 120.0

Sync = Callable[[int], dict[str, float]]


def main() -> None:
    """Build the side that is asked for, then sync when told to."""
    role, scratch, shape, descriptor = sys.argv[1:]
    build = {"trainer": trainer, "searcher": searcher}[role]
    sync = build(Path(scratch), tuple(map(int, shape.split(","))))
    serve(lambda asked: sync(asked["version"]), descriptor=int(descriptor))


def trainer(scratch: Path, shape: tuple[int, ...]) -> Sync:
    """The learner's own export and probe; makes the policy first."""
    from tbactl.trainer.learner import DeepSpeedLearner

    run = gsm8k_run()
    policy = scratch / "policy"
    make_policy(policy, shape=shape, tokenizer_from=resolve_policy(run))
    config = ProcessConfig(
        role="trainer",
        index=0,
        run=run,
        run_directory=scratch / "run",
        shm_directory=scratch / "shm",
        policy_directory=policy,
    )
    learner = DeepSpeedLearner(config)
    rng = random.Random(0)
    sequences = tuple(
        (tuple(rng.randrange(shape[-1]) for _ in range(PROBE_LENGTH)), PROBE_PROMPT)
        for _ in range(run.sync.probe_sequences)
    )
    probe = ProbeBatch(sequences=sequences)
    weights = config.shm.weights

    def sync(version: int) -> dict[str, float]:
        start = time.perf_counter()
        scores = learner.probe_logprobs(probe)
        publish(weights, version=version, write=learner.write_weights, probe=probe, probe_logprobs=scores)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "size_bytes": weights_path(weights, version).stat().st_size}

    return sync


def searcher(scratch: Path, shape: tuple[int, ...]) -> Sync:
    """A subscriber with an engine."""
    from tbactl.engines.transformers_engine import TransformersEngine

    del shape  # the trainer has made the policy
    policy = scratch / "policy"
    engine = TransformersEngine(EngineConfig(policy_directory=policy, max_model_tokens=256))
    subscriber = Subscriber(
        ShmLayout(scratch / "shm").weights, policy_directory=policy, max_logprob_difference=0.1, clock=SystemClock()
    )

    def sync(version: int) -> dict[str, float]:
        until = time.monotonic() + LIMIT_S
        while (published := subscriber.find(version)) is None:
            assert time.monotonic() < until, version
            time.sleep(0.002)
        report = subscriber.load(published, engine=engine)
        assert report is not None and report.max_logprob_difference < 1e-2, report
        return {"seconds": report.seconds}

    return sync


def make_policy(directory: Path, *, shape: tuple[int, ...], tokenizer_from: Path) -> None:
    """Random weights in Hugging Face form."""
    hidden, layers, heads, key_heads, between, vocabulary = shape
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=between,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_from)
    config.eos_token_id = tokenizer.eos_token_id
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    main()
