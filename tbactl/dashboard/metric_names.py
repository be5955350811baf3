"""The keys of metrics.jsonl that the dashboard reads (docs/metrics.md explains all of them)."""

from __future__ import annotations

# Of the completions that arrive, not of the batch: the replay buffer keeps one of several equal completions, so batches
# lean towards prompts on which the policy is still undecided.
REWARD = "intake/reward/mean"
COMPLETION_TOKENS = "intake/completion_tokens/mean"
BATCH_REWARD = "objective/reward/mean"

# Short name on a plain line -> key.
PLAIN = {
    "reward": REWARD,
    "batch_reward": BATCH_REWARD,
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
