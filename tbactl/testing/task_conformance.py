"""What a task must do to train with it, checked without a model: `tbactl tasks check`, or from a test of your own.

    task = MyTask(...)
    assert check_task(task) == []

Streams must be endless, equal for equal seeds, and keep held-out problems out of training; a task that says
`has_fixed_prompt = True` has one prompt for both. Rewards must be one for each completion, in order, finite and fast,
whatever the completion says: a policy in training writes anything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from tbactl.protocols import Task
from tbactl.types import Completion, EvaluationResult, Prompt, Reward, SamplingParams

# Texts that broke rewards before: empty, binary, enormous, deeply nested, explosive when evaluated, or no text at all.
HOSTILE_TEXTS: dict[str, str] = {
    "empty": "",
    "white space": " \n\t\r\v\f\u00a0\u2028",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x9b31m",
    "terminal codes": "\x1b[2J\x1b]0;title\x07\x1b[31m42",
    "lone surrogates": "\ud800 42 \udfff",
    "unusual digits": "\u0664\u0662 \uff14\uff12 \u00bd \u2212\u0967 \u2460 \u4e94",
    "bidirectional marks": "\u202e24\u202c \u2066x\u2069",
    "not a number": "#### nan",
    "infinity": "\\boxed{-inf} #### -inf 1e999999999",
    "exponent bomb": "#### 9**9**9**9",
    "LaTeX exponent bomb": "\\boxed{9^{9^{9^{9}}}}",
    "factorial bomb": "\\boxed{(10^{9})!}",
    "nested braces": "\\boxed{" + "{" * 50_000 + "1" + "}" * 50_000 + "}",
    "unclosed boxes": "\\boxed{" * 20_000,
    "nested parentheses": "\\boxed{" + "(" * 150 + "1" + ")" * 150 + "}",
    "nested fractions": "\\boxed{" + "\\frac{1}{" * 40 + "2" + "}" * 40 + "}",
    "code": "\\boxed{__import__('os')._exit(1)} #### exec('raise SystemExit')",
    "long number": "#### " + "9" * 100_000,
    "long text": "word " * 20_000,
    "long line of markers": "#### " * 20_000,
    "repeated phrase": "the answer is " * 7_000,
    "groups of digits": "1," + "234," * 25_000 + "5",
    "signs": "-" * 100_000 + "1",
    "spaces": "#### " + " " * 100_000 + "1",
    "dollars": "$" * 100_000,
    "backslashes": "\\" * 100_000,
    "format codes": "%s%n{0}{__class__} ${HOME} $(true) `true`",
}


def check_task(task: Task, *, num_prompts: int = 200, time_limit_s: float = 60.0) -> list[str]:
    """Problems found, one sentence each; empty when the task conforms.

    Args:
        task: built with the options to be checked. It is not closed.
        num_prompts: compared between streams, for each split.
        time_limit_s: for scoring one hostile completion.
    """
    checks: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _check_members(task),
        lambda: _check_streams(task, num_prompts),
        lambda: _check_rewards(task, time_limit_s),
        lambda: _check_evaluation(task),
        lambda: (f"self_check: {problem}" for problem in task.self_check()),
    )
    problems: list[str] = []
    for check in checks:
        try:
            problems.extend(check())
        except Exception as error:  # the one boundary: a task under test may raise anything
            problems.append(f"{type(error).__name__}: {error}")
    return problems


def has_fixed_prompt(task: Task) -> bool:
    """Whether a task says that it has one prompt only: nothing can be held out then."""
    return getattr(task, "has_fixed_prompt", False)


def _check_members(task: Task) -> Iterator[str]:
    if not isinstance(task, Task):
        yield f"{type(task).__name__} lacks a method or attribute of tbactl.protocols.Task."
    elif not isinstance(task.name, str) or not task.name:
        yield f"name is {task.name!r}; it must be a string that is not empty."


def _check_streams(task: Task, num_prompts: int) -> Iterator[str]:
    streams: dict[str, list[Prompt]] = {}
    for split in ("train", "test"):
        first, again, other = (list(islice(task.prompts(split, seed=seed), num_prompts)) for seed in (0, 0, 1))
        streams[split] = [*first, *other]
        if len(first) < num_prompts:
            yield f"prompts('{split}') ends after {len(first)}; the stream must be endless (repeat what there is)."
        if first != again:
            yield f"prompts('{split}', seed=0) differs between two calls; it must depend on the seed alone."
        yield from _check_prompts(split, first)
    if has_fixed_prompt(task):
        if any(prompt != streams["train"][0] for stream in streams.values() for prompt in stream):
            yield "has_fixed_prompt is set, but the streams hold more than one prompt."
        return
    for what, seen in (("prompt_id", lambda prompt: prompt.prompt_id), ("text", lambda prompt: prompt.text)):
        shared = {seen(prompt) for prompt in streams["train"]} & {seen(prompt) for prompt in streams["test"]}
        if shared:
            yield f"train and test share {len(shared)} values of {what}, {min(shared)!r} for one."


def _check_prompts(split: str, prompts: Sequence[Prompt]) -> Iterator[str]:
    texts: dict[int, str] = {}
    for prompt in prompts:
        facts_are_text = all(isinstance(text, str) for item in prompt.facts.items() for text in item)
        if not prompt.text or not facts_are_text or not 0 <= prompt.prompt_id < 2**63:
            yield f"{split}: prompt {prompt.prompt_id} needs a text, facts of plain strings, and an id in [0, 2^63)."
            return
        if texts.setdefault(prompt.prompt_id, prompt.text) != prompt.text:
            yield f"{split}: prompt_id {prompt.prompt_id} stands for two texts; the buffer groups trajectories by it."
            return


def _check_rewards(task: Task, time_limit_s: float) -> Iterator[str]:
    prompt = next(task.prompts("train", seed=0))
    if task.score(prompt, []) != []:
        yield "score(prompt, []) must give an empty list."
    alone: list[float] = []
    for name, text in HOSTILE_TEXTS.items():
        start = time.monotonic()
        try:
            rewards = task.score(prompt, [_completion(text)])
        except Exception as error:  # reported for each text by name
            yield f"score raises for a completion ({name}): {type(error).__name__}: {error}"
            return
        seconds = time.monotonic() - start
        if seconds > time_limit_s:
            yield f"score takes {seconds:.1f} s for a completion ({name}); the limit is {time_limit_s:g} s."
        problem = _reward_problem(rewards, num_completions=1)
        if problem:
            yield f"score of a completion ({name}): {problem}"
            return
        alone.append(rewards[0].value)
    together = task.score(prompt, [_completion(text) for text in HOSTILE_TEXTS.values()])
    problem = _reward_problem(together, num_completions=len(alone))
    if problem:
        yield f"score of {len(alone)} completions: {problem}"
    elif [reward.value for reward in together] != alone:
        yield "score gives other rewards for a group than for its completions alone, or in another order."


def _reward_problem(rewards: Any, *, num_completions: int) -> str | None:
    if not isinstance(rewards, list) or len(rewards) != num_completions:
        return f"{num_completions} rewards are expected as a list; it is {str(rewards)[:100]}."
    for reward in rewards:
        if not isinstance(reward, Reward):
            return f"a reward is {reward!r}; it must be a tbactl.types.Reward."
        numbers = {"value": reward.value, **reward.metrics}
        for name, number in numbers.items():
            if type(number) is not float or not math.isfinite(number):
                return f"{name} is {number!r}; it must be a finite float."
        if not isinstance(reward.reason, str) or not isinstance(reward.error, str | None):
            return "reason must be a string, error a string or None."
    return None


def _check_evaluation(task: Task) -> Iterator[str]:
    asked: list[list[Prompt]] = []

    def generate(prompts: Sequence[Prompt], num_completions: int, _: SamplingParams) -> list[list[Completion]]:
        if prompts:  # without any: the evaluation only says that it goes on
            asked.append(list(prompts))
        return [[_completion("42")] * num_completions for _ in prompts]

    result = task.evaluate(generate, limit=4, seed=0, policy_version=7)
    prompts = task.evaluation_prompts(limit=4, seed=0)
    if prompts != task.evaluation_prompts(limit=4, seed=0):
        yield "evaluation_prompts differs between two calls with the same seed."
    if not asked or any(group != prompts for group in asked):
        yield "evaluate asks for other prompts than evaluation_prompts(limit=4, seed=0)."
    trained_on = {prompt.text for prompt in islice(task.prompts("train", seed=0), 200)}
    if not has_fixed_prompt(task) and any(prompt.text in trained_on for prompt in prompts):
        yield "evaluation_prompts holds a prompt of the training stream."
    yield from _check_result(task, result)


def _check_result(task: Task, result: EvaluationResult) -> Iterator[str]:
    if (result.task, result.policy_version) != (task.name, 7) or not 1 <= result.num_prompts <= 4:
        yield (
            f"evaluate(limit=4, policy_version=7) of '{task.name}' reports {result.num_prompts} prompts of version "
            + (f"{result.policy_version} of task '{result.task}'.")
        )
    if not result.metrics:
        yield "evaluate reports no metric; the first one is what runs are compared by."
    bounds = [bound for interval in result.intervals.values() for bound in interval]
    if not all(map(math.isfinite, [*result.metrics.values(), *bounds])):
        yield f"evaluate reports a metric or interval that is not finite: {result.metrics}, {result.intervals}."
    for name, (low, high) in result.intervals.items():
        if name not in result.metrics or not low <= result.metrics[name] <= high:
            yield f"evaluate: the interval ({low}, {high}) does not belong to a metric '{name}' inside it."


def _completion(text: str) -> Completion:
    return Completion(token_ids=(0,), logprobs=(0.0,), text=text, finish_reason="stop")
