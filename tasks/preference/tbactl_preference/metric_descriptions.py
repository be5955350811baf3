"""What each metric of an evaluation means, in one line; docs/preference.md says more."""

from __future__ import annotations

METRIC_DESCRIPTIONS = {
    "win_rate": "share of prompts whose gold reward is above that of the human summary (a tie is no win)",
    "gold_reward_mean": "gold reward of the completions",
    "human_gold_reward_mean": "gold reward of the human summaries",
    "reward_mean": "reward that the policy is trained on, with the penalty for a missing end",
    "scoring_failed_share": "prompts with a score that is not a finite number; left out of the means",
    "completion_tokens_mean": "tokens of a completion, the end of text included",
    "missing_eos_share": "completions that do not end by themselves",
    "unanswered_share": "prompts that the engine refused, being too long; their completion is empty",
    "duplicate_share": "completions that are equal to an earlier one, letter by letter",
    "rouge_1_mean": "F1 of words shared with the human summary",
    "rouge_2_mean": "F1 of pairs of words shared with the human summary",
    "rouge_l_mean": "F1 of the longest common subsequence of words with the human summary",
    "kl_k1_per_sequence": "KL(policy || reference), nats a completion, estimator k1",
    "kl_k3_per_sequence": "KL(policy || reference), nats a completion, estimator k3",
    "kl_k1_per_token": "KL(policy || reference), nats a token, estimator k1",
    "kl_k3_per_token": "KL(policy || reference), nats a token, estimator k3",
    "kl_failed_share": "samples without finite log-probs; left out of the divergence",
    "reference_perplexity_mean": "the paper's 'perplexity': exp(NLL under the reference / tokens of prompt and text)",
    "perplexity_failed_share": "completions without a finite one; left out of it",
}
