"""States of a run to draw: an ordinary one, and changes to it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from tbactl.config.run_record import RunRecord
from tbactl.config.sections import RunConfig
from tbactl.dashboard.describe import describe_event
from tbactl.dashboard.state import AccuracyPoint, DashboardState, PageSnapshot, Sample
from tbactl.ipc.control_page import SEARCHER_WORDS, SUPERVISOR_WORDS, TRAINER_WORDS, RunState


def make_config(*, num_searchers: int = 2) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "gsm8k", "task": {"kind": "fake"}, "policy": {"path": "p"}, "trainer": {"max_steps": 60},
            "searchers": {"num_searchers": num_searchers}, "replay": {"capacity": 4096},
        }
    )  # fmt: skip


def make_record(**changes: Any) -> RunRecord:
    record = RunRecord(
        name="gsm8k",
        recipe="gsm8k",
        profile="cpu",
        attempt=1,
        pid=1,
        pid_start_ticks=1,
        shm_directory=Path("/dev/shm/none"),
        started_at="2026-01-01T00:00:00.000+00:00",
        outcome="running",
    )
    return record.model_copy(update=changes)


def make_page(*, num_searchers: int = 2, run_state: RunState = RunState.RUNNING) -> PageSnapshot:
    trainer = dict.fromkeys(TRAINER_WORDS, 0.0) | {
        "state": 3, "phase": 3, "policy_version": 23, "published_version": 22, "checkpoint_step": 20,
        "num_trajectories_received": 4096, "num_trajectories_trained": 2944, "buffer_trajectories": 2048,
        "buffer_prompts": 128, "buffer_capacity": 4096, "f_step_seconds": 3.2, "f_steps_per_second": 0.31,
        "f_loss": 0.0312, "f_residual": 0.176, "f_log_z": 1.234, "f_kl": 2.31, "f_grad_norm": 0.81,
        "f_learning_rate": 1e-4, "f_beta": 0.0143, "f_idle_fraction": 0.12, "f_staleness_p50": 1, "f_staleness_p95": 3,
        "f_samples_per_insert": 1.2, "f_reward_high": 1.0, "reward_bin_0": 900, "reward_bin_9": 1100,
        **{f"staleness_bin_{i}": max(0, 200 - 20 * i) for i in range(16)},
    }  # fmt: skip
    searcher = dict.fromkeys(SEARCHER_WORDS, 0.0) | {
        "state": 3, "attempt": 1, "loaded_version": 22, "num_completions": 2400, "num_syncs": 11,
        "f_tokens_per_s": 2360.0, "f_ring_fill": 0.03, "f_sync_seconds": 0.09, "f_logprob_difference": 2.1e-6,
        "f_idle_fraction": 0.02,
    }  # fmt: skip
    supervisor = dict.fromkeys(SUPERVISOR_WORDS, 0.0) | {"run_state": run_state}
    return PageSnapshot(0, supervisor, [trainer], [dict(searcher) for _ in range(num_searchers)])


EVENTS = (
    {"elapsed_s": 0, "kind": "run_started", "process": "supervisor", "details": {"attempt": 1}},
    {"elapsed_s": 40, "kind": "run_state", "process": "supervisor", "details": {"state": "RUNNING"}},
    {"elapsed_s": 60, "kind": "checkpoint", "process": "trainer-0", "details": {"step": 10}},
    {"elapsed_s": 90, "kind": "child_died", "process": "searcher-1", "details": {"how": "killed by SIGKILL"}},
    {
        "elapsed_s": 200, "kind": "evaluation", "process": "searcher-0",
        "details": {"metrics": {"accuracy": 0.587}, "policy_version": 20},
    },
)  # fmt: skip


def make_state(*, num_searchers: int = 2, **changes: Any) -> DashboardState:
    state = DashboardState(
        config=make_config(num_searchers=num_searchers),
        record=make_record(),
        page=make_page(num_searchers=num_searchers),
        elapsed_s=252.0,
        step=23,
        eta_s=331.0,
        rewards=[(float(i), 0.2 + 0.45 * (1 - math.exp(-i / 7))) for i in range(1, 24)],
        completion_tokens=[(float(i), 20 + 34 * (1 - math.exp(-i / 6))) for i in range(1, 24)],
        accuracy=[
            AccuracyPoint(metric="accuracy", policy_version=v, value=a, interval=(a - 0.04, a + 0.04), num_prompts=512)
            for v, a in ((0, 0.2), (10, 0.5), (20, 0.587))
        ],
        metrics={},
        events=[describe_event(event) for event in EVENTS],
        sample=Sample(
            step=23,
            prompt="How many clips did she sell?",
            completion="48 / 2 = 24\n#### 72",
            reward=1.0,
            policy_version=22,
            finish_reason="stop",
        ),
    )
    return replace(state, **changes)
