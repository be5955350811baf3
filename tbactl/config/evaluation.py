"""What `python -m tbactl.evaluation --config FILE` is told; `tbactl eval` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tbactl.config.sections import NonNegativeFloat, PositiveInt, Section, StopString, TaskSection


class EvaluationConfig(Section):
    """One evaluation of one policy."""

    task: TaskSection
    """Which problems, which reward; `data` is already in its options."""
    checkpoint: str
    """A run directory, a checkpoint of one, a directory or hub name in Hugging Face form, or `task:NAME`."""
    harness: Literal["native", "lm-eval"] = "native"
    """`native`: the task's own evaluation; `lm-eval`: the lm-evaluation-harness drives our engine."""
    engine: str = "vllm"
    """Name of an engine."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """The engine's own settings."""
    reference_policy: str | None = None
    """What a task measures the policy's divergence from, where it does; for a run's checkpoint the policy that the run
    started from. The task's own option of that name wins."""
    data: Path | None = None
    """Problems from this JSONL file instead of the task's own held-out split."""
    limit: Annotated[int, Field(ge=0)] = 0
    """Held-out prompts; 0: all of them, or the task's own number where the split has no end."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of sampling, and of endless splits."""
    num_samples: PositiveInt = 1
    """Completions for each prompt: 1 is greedy accuracy at temperature 0, more give avg@k and pass@k."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; 0 is greedy. None: the task's own, which is greedy for the single sample of `math`."""
    max_prompt_tokens: PositiveInt = 512
    """Longer prompts count as wrong, and are counted."""
    max_new_tokens: PositiveInt = 512
    """Completions are cut here."""
    stop_strings: tuple[StopString, ...] = ()
    """Completions end with the token that completes one of these, as in training (native harness only)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you trust its author; what a run says does not count."""
    output: Path | None = None
    """Directory for the results as JSON; None: only the result line on standard output."""
