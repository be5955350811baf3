"""How far a policy has moved from a reference policy.

The Kullback-Leibler divergence KL(policy || reference) is an expectation over the policy's own samples at temperature
1, so it is measured on such, whatever temperature the judged completions have. On greedy completions the mean log-ratio
estimates nothing: it sees the likeliest tokens only, where a policy in training gains most, and may be far too large
or, where the policy has become more uniform, negative.

With d = log policy(token) - log reference(token), the estimators of http://joschu.net/blog/kl-approx.html are

    k1 = d                  unbiased; a single one may be negative
    k3 = exp(-d) - 1 + d    unbiased, never negative; of lower variance where the two are near, but where they are far
                            apart mostly too low, since the tokens that make it large are hardly ever sampled

Summed over a sequence's tokens both estimate the divergence of whole sequences, since every token is drawn from the
policy given those before it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Protocol

from tbactl.errors import TaskError
from tbactl.evaluation.estimates import Estimate, mean, ratio, share
from tbactl.protocols import Generate
from tbactl.types import Completion, Prompt, SamplingParams
from tbactl_preference.judging import answered

logger = logging.getLogger(__name__)

Sequences = Sequence[tuple[tuple[int, ...], int]]
_NUM_COMPARED_TEXTS = 20
# Of a float64.
_MAX_EXPONENT = 709.0


class Reference(Protocol):
    """The policy that the divergence is measured from."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Their text, without special tokens."""
        ...

    def sequence_logprobs(self, sequences: Sequences) -> list[tuple[float, ...]]:
        """Log-probs in nats of given tokens, each item (token ids, prompt length); prompts are not scored."""
        ...


def measure_divergence(
    prompts: Sequence[Prompt],
    *,
    completions: Sequence[Completion],
    generate: Generate,
    reference: Reference,
    max_new_tokens: int,
) -> dict[str, Estimate]:
    """Divergence on fresh samples at temperature 1, and the paper's "perplexity" of the judged completions.

    Args:
        prompts: those of the evaluation.
        completions: the judged ones, one for each prompt.
        generate: asked once more for each prompt. Its log-probs at temperature 1 are the policy's.
        reference: must have the policy's tokenizer.
        max_new_tokens: samples are cut here; the divergence is that of sequences cut there.

    Raises:
        TaskError: the reference has another tokenizer, or no sequence has finite log-probs.
    """
    _check_tokenizer(completions, reference=reference)
    prompt_ids = [reference.encode(prompt.text) for prompt in prompts]
    sampling = SamplingParams(max_new_tokens=max_new_tokens, temperature=1.0)
    samples = answered(prompts, generate=generate, sampling=sampling)
    metrics = divergence_metrics([item.logprobs for item in samples], reference=_scored(reference, prompt_ids, samples))
    return metrics | perplexity_metrics(
        _scored(reference, prompt_ids, completions), num_prompt_tokens=[len(ids) for ids in prompt_ids]
    )


def divergence_metrics(
    policy: Sequence[Sequence[float]], *, reference: Sequence[Sequence[float]]
) -> dict[str, Estimate]:
    """KL(policy || reference) in nats, of a sequence and of a token, by k1 and k3.

    A sequence without tokens (its prompt was refused), or with a log-prob that is not finite, is left out and counted
    in `kl_failed_share`. Intervals take sequences as independent.

    Args:
        policy: log-probs of each sampled token under the policy, at temperature 1.
        reference: the same tokens' under the reference policy.

    Raises:
        TaskError: no sequence is left.
    """
    k1, k3, lengths = [], [], []
    for ours, theirs in zip(policy, reference, strict=True):
        differences = [a - b for a, b in zip(ours, theirs, strict=True)]
        sums = sum(differences), sum(_k3(difference) for difference in differences)
        if differences and all(map(math.isfinite, sums)):
            k1.append(sums[0])
            k3.append(sums[1])
            lengths.append(float(len(differences)))
    failed = _failed_share(len(k1), num_sequences=len(policy), what="divergence")
    return {
        "kl_k1_per_sequence": mean(k1),
        "kl_k3_per_sequence": mean(k3),
        "kl_k1_per_token": ratio(k1, lengths),
        "kl_k3_per_token": ratio(k3, lengths),
        "kl_failed_share": failed,
    }


def perplexity_metrics(
    reference: Sequence[Sequence[float]], *, num_prompt_tokens: Sequence[int]
) -> dict[str, Estimate]:
    """The "perplexity" of the TBA paper's tables (arXiv 2503.18929), which is not one: see docs/preference.md.

    The negative log-likelihood of a response under the reference policy, divided by the number of tokens of prompt
    *and* response, exponentiated; then the mean over responses. Long prompts bring it near 1.

    Args:
        reference: log-probs of each response's tokens under the reference policy, an end of text included.
        num_prompt_tokens: of each prompt.

    Raises:
        TaskError: no response has a finite one.
    """
    values = [
        _exp(-sum(logprobs) / (num_prompt + len(logprobs)))
        for logprobs, num_prompt in zip(reference, num_prompt_tokens, strict=True)
        if logprobs
    ]
    finite = [value for value in values if math.isfinite(value)]
    failed = _failed_share(len(finite), num_sequences=len(reference), what="perplexity")
    return {"reference_perplexity_mean": mean(finite), "perplexity_failed_share": failed}


def _k3(difference: float) -> float:
    # expm1 keeps the digits of small differences.
    return math.inf if difference < -_MAX_EXPONENT else math.expm1(-difference) + difference


def _exp(value: float) -> float:
    return math.inf if value > _MAX_EXPONENT else math.exp(value)


def _failed_share(num_good: int, *, num_sequences: int, what: str) -> Estimate:
    num_failed = num_sequences - num_good
    if not num_good:
        raise TaskError(
            f"{what}: none of {num_sequences} sequences has tokens with finite log-probs under policy and reference; "
            f"one of the two is broken"
        )
    if num_failed:
        logger.warning("%s num_failed=%d of %d: left out", what, num_failed, num_sequences)
    return share([i < num_failed for i in range(num_sequences)])


def _scored(
    reference: Reference, prompt_ids: Sequence[tuple[int, ...]], completions: Sequence[Completion]
) -> list[tuple[float, ...]]:
    sequences = [((*ids, *item.token_ids), len(ids)) for ids, item in zip(prompt_ids, completions, strict=True)]
    return reference.sequence_logprobs(sequences)


def _check_tokenizer(completions: Sequence[Completion], *, reference: Reference) -> None:
    compared = [item for item in completions if item.token_ids][:_NUM_COMPARED_TEXTS]
    # An engine may write single bytes or spaces otherwise; another vocabulary makes all texts differ.
    num_equal = sum(reference.decode(item.token_ids) == item.text for item in compared)
    if 2 * num_equal < len(compared):
        raise TaskError(
            f"reference_policy has another tokenizer than the policy: it reads {len(compared) - num_equal} of "
            f"{len(compared)} completions differently; choose the policy that training started from, or "
            f"--set task.options.reference_policy=none"
        )
