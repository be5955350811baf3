"""The extension points.

How they meet, without the processes, rings and restarts that stand between them:

    for prompt in task.prompts("train", seed):                                   # searcher
        for _ in range(S):
            engine.submit(request)
        completions = engine.step() ...
        rewards = task.score(prompt, completions)
        ring.write(encode(group(prompt, completions, rewards)))

    replay_buffer.insert(decode(ring.read()))                                     # trainer
    groups = sampler.select(replay_buffer, num_prompts=B, num_per_prompt=K, rng)
    report = learner.update(groups, beta)             # log-probs -> objective -> backward -> optimizer step
    if version % k == 0:
        publish(learner)                              # searchers: engine.load_policy(...)

Classes that implement them are found by name in `registry.py`. Each protocol has a conformance suite in
`tbactl.testing` that a third party can run on its own implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tbactl.types import Completion, EvaluationResult, Prompt, Reward, SamplingParams, TrajectoryGroup

# Answers each prompt with `num_completions` completions, in the order asked; all of one policy version. An evaluation
# that computes for long without asking calls it without prompts now and then, which says that it goes on; it is ended
# there when its time is over. Completions end at the stop strings of the run, unless the task asks for others.
Generate = Callable[[Sequence[Prompt], int, SamplingParams], list[list[Completion]]]


@runtime_checkable
class Task(Protocol):
    """Prompts, reward and evaluation of one problem family. Built once per process from the recipe's `task.options`.

    Constructing a task must be cheap and import nothing heavy; data is read at first use.
    """

    name: str

    def prompts(self, split: str, *, seed: int) -> Iterator[Prompt]:
        """Endless stream of a split ("train" or "test"): the same for the same seed, in every process."""
        ...

    def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Reward]:
        """One reward for each completion, in order. Never raises for what a completion says."""
        ...

    def evaluation_prompts(self, *, limit: int, seed: int) -> list[Prompt]:
        """The first `limit` held-out prompts in order; 0: all, or the task's own number where they have no end."""
        ...

    def evaluate(self, generate: Generate, *, limit: int, seed: int, policy_version: int) -> EvaluationResult:
        """Measure a policy on `evaluation_prompts(limit, seed)`."""
        ...

    def self_check(self) -> list[str]:
        """Problems found without a model (a gold answer that does not score the maximum). Empty when all is well."""
        ...

    def close(self) -> None:
        """Release what the task holds (worker processes, files)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One completion asked of an engine. `seed` None: the engine's own stream."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """What an engine gives back. `error` is set, and `completion` None, when this one request failed."""

    request_id: str
    completion: Completion | None
    error: str | None = None


class Engine(Protocol):
    """Generates completions; lives in a searcher or an evaluation. Not thread-safe: one loop drives it."""

    policy_version: int

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds."""
        ...

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; it takes part from the next `step`."""
        ...

    def step(self) -> list[FinishedRequest]:
        """Advance all running requests by about one token; return those that finished. Bounded work, never waits."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and not yet returned by `step`."""
        ...

    def load_policy(self, weights: Path, *, version: int) -> str:
        """Take new weights between two steps; running requests go on. Returns the fingerprint of what was loaded.

        Raises:
            ChildFailedError: a parameter is missing, unknown, or of the wrong shape; the old weights may be gone.
        """
        ...

    def sequence_logprobs(self, sequences: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[float, ...]]:
        """Log-probs at temperature 1 of given tokens, each item (token ids, prompt length); prompts are not scored."""
        ...

    def close(self) -> None:
        """Free the engine's memory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeBatch:
    """A few sequences whose log-probs both sides compute after every sync: (token ids, prompt length) each."""

    sequences: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What an optimizer step found out."""

    metrics: dict[str, float]
    residuals: dict[int, float]
    """Trajectory uid -> its balance residual before the step, in reward units (eq. 3 of the paper, times beta)."""


class Learner(Protocol):
    """The trainer's heavy half: from groups to an optimizer step. One in each trainer rank, called in step."""

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        *,
        beta: float,
        should_abort: Callable[[], bool],
        reference_exponent: float = 1.0,
    ) -> UpdateReport | None:
        """One optimizer step on the groups, towards pi_ref^reference_exponent * exp(reward / beta).

        An abort leaves the weights alone and returns None.
        """
        ...

    def probe_logprobs(self, probe: ProbeBatch) -> list[tuple[float, ...]]:
        """Log-probs at temperature 1 of the probe under the current weights."""
        ...

    def export_policy(self, directory: Path) -> None:
        """Write the policy in Hugging Face form (safetensors, config, tokenizer) and verify it tensor by tensor."""
        ...

    def write_weights(self, path: Path) -> None:
        """Write all parameters, tied ones included, as one safetensors file for the searchers."""
        ...

    def save(self, directory: Path) -> None:
        """Write weights, optimizer, schedule and RNG state for an exact resume."""
        ...

    def load(self, directory: Path) -> None:
        """The reverse of `save`."""
        ...

    def close(self) -> None:
        """Leave process groups, free memory."""
        ...


class Logger(Protocol):
    """Where metrics go. Fails loudly in `start`, never later."""

    def start(self, run_directory: Path, resolved_config: dict[str, Any]) -> None:
        """Open; raise ConfigError here if it cannot work."""
        ...

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of one optimizer step."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...
