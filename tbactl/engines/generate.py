"""Prompts in, completions out, over any engine: what a task's evaluation calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tbactl.protocols import Engine, FinishedRequest, GenerationRequest
from tbactl.types import Completion, Prompt, SamplingParams

logger = logging.getLogger(__name__)


def generate(
    engine: Engine,
    prompts: Sequence[Prompt],
    num_completions: int,
    sampling: SamplingParams,
    *,
    max_prompt_tokens: int | None = None,
    name: str = "generate",
    seed: int | None = None,
    on_other: Callable[[FinishedRequest], None] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> list[list[Completion]]:
    """Answer each prompt with `num_completions` completions, in the order asked. The engine must not change its policy.

    Args:
        engine: may have other requests running; they advance too.
        prompts: texts; none: `on_step` is called all the same, once.
        num_completions: for each prompt.
        sampling: of all of them.
        max_prompt_tokens: longer prompts are not asked, also where the engine would take them and cut their completions
            short; None: the engine's own limit.
        name: what the ids of its requests begin with; no other request of the engine may.
        seed: makes each completion independent of what else runs; None: the engine's own stream.
        on_other: takes a finished request that is not of this call.
        on_step: called after each step; raise to give up.

    Returns:
        For each prompt its completions. One that failed, or whose prompt is too long, is empty and has
        `finish_reason` "abort".
    """
    answers: dict[str, Completion | None] = {}
    names = [[f"{name}-{i}-{k}" for k in range(num_completions)] for i in range(len(prompts))]
    num_refused = 0
    for i, prompt in enumerate(prompts):
        token_ids = engine.encode(prompt.text)
        answers |= dict.fromkeys(names[i])
        if max_prompt_tokens is not None and len(token_ids) > max_prompt_tokens:
            num_refused += num_completions
            continue
        for k, request_id in enumerate(names[i]):
            engine.submit(
                GenerationRequest(
                    request_id=request_id,
                    prompt_token_ids=token_ids,
                    sampling=sampling,
                    seed=None if seed is None else request_seed(seed, i, k),
                )
            )
    num_missing = len(answers) - num_refused
    if not num_missing:
        on_step()
    while num_missing:
        assert engine.num_unfinished, "the engine has lost requests"
        for finished in engine.step():
            if finished.request_id in answers:
                answers[finished.request_id] = finished.completion
                num_missing -= 1
            elif on_other is not None:
                on_other(finished)
        on_step()
    num_failed = sum(completion is None for completion in answers.values())
    if num_failed:
        too_long = (
            f"; num_refused={num_refused} of prompts of more than {max_prompt_tokens} tokens" if num_refused else ""
        )
        logger.warning("%s num_failed=%d of %d: they count as empty%s", name, num_failed, len(answers), too_long)
    failed = Completion(token_ids=(), logprobs=(), text="", finish_reason="abort")
    return [[answers[request_id] or failed for request_id in row] for row in names]


def request_seed(seed: int, position: int, number: int) -> int:
    """A seed for one completion: the same for the same three numbers, in [0, 2^31)."""
    value = seed
    for part in (position, number):
        # Knuth's multiplicative step, enough to keep neighbouring requests apart.
        value = ((value ^ part) * 2_654_435_761 + 0x9E3779B9) % 2**63
        value ^= value >> 29
    return value % 2**31
