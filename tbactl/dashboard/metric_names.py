"""The keys of metrics.jsonl that the dashboard reads (docs/metrics.md explains all of them)."""

from __future__ import annotations

REWARD = "objective/reward/mean"
COMPLETION_TOKENS = "objective/completion_tokens/mean"

# Short name on a plain line -> key.
PLAIN = {
    "reward": REWARD,
    "loss": "objective/loss/mean",
    "residual": "objective/residual/rms",
    "log_z": "objective/log_z/mean",
    "kl": "objective/kl/mean",
    "completion_tokens": COMPLETION_TOKENS,
    "staleness_p95": "replay/staleness/p95",
    "beta": "objective/beta/value",
    "learning_rate": "trainer/learning_rate/value",
    "grad_norm": "trainer/grad_norm/value",
}
