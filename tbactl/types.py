"""What travels between processes: frozen dataclasses of plain values, no tensors, no behaviour.

One trajectory's way: a task makes a `Prompt`; a searcher's engine answers it with S `Completion`s; the task's reward
turns each into a `Trajectory`; the S of one prompt form a `TrajectoryGroup`, the unit of storage, sampling and loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One x. `prompt_id` is unique within a task's split and stable across runs and processes."""

    prompt_id: int
    text: str
    # What the reward needs besides the text (the gold answer, a reference summary). Plain strings only.
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How an engine samples. `temperature` 0 means greedy; log-probs are then those at temperature 1.

    A completion ends with the token after the first `min_new_tokens` that completes one of `stop_strings` in its text,
    none of which is empty. That token belongs to it, whatever else the token holds.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    min_new_tokens: int = 0
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One y, exactly as the engine sampled it.

    `token_ids` ends with EOS, or with the token that completed a stop string, if and only if `finish_reason` is "stop";
    EOS is never added afterwards. `text` is that of all tokens, so a stop string is in it. `logprobs` are
    the behaviour log-probs in nats, one for each token id, of the distribution that was sampled from (logits divided
    by the temperature). Weights may change between two tokens: `first_version` .. `last_version` is the span of policy
    versions that produced it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: FinishReason
    first_version: int = 0
    last_version: int = 0

    @property
    def version(self) -> int:
        """The policy version it counts as: the oldest that made one of its tokens, so that age limits hold for all."""
        return self.first_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The score of one completion. `error` is set when scoring itself failed; such a completion is never trained on."""

    value: float
    reason: str = ""
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A completion with its reward. `uid` is unique in a run and tells its searcher: uid >> 48."""

    uid: int
    completion: Completion
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The trajectories of one prompt that travel, are stored and are drawn together; log Z is estimated over them."""

    prompt_id: int
    prompt_text: str
    prompt_token_ids: tuple[int, ...]
    trajectories: tuple[Trajectory, ...]
    searcher: int
    sequence_number: int
    # Where the searcher's prompt stream goes on if the run is resumed right after this group: all its prompts before
    # that position are answered. Never decreases along a ring.
    stream_position: int = 0
    num_failed: int = 0

    @property
    def newest_version(self) -> int:
        """The newest policy version that produced any token of the group."""
        return max((t.completion.last_version for t in self.trajectories), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """What an evaluation measured, at which policy version. Rates are in [0, 1]; intervals are 95 %."""

    task: str
    policy_version: int
    num_prompts: int
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0
    samples: tuple[dict[str, str], ...] = ()
    template: str = ""
    """The text around each problem, as the policy reads it; where the prompt is fixed, the prompt. Figures under other
    templates are about another problem."""
    num_shots: int = 0
    """Solved examples in the prompt."""
