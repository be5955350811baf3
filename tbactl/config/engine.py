"""What an engine is told, whoever drives it: a searcher, an evaluation, a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import PositiveInt, Section
from tbactl.errors import ConfigError

Options = TypeVar("Options", bound=BaseModel)

# Searchers draw from streams of their own: a large odd stride keeps seeds of neighbouring runs apart.
_SEED_STRIDE = 1_000_003


class EngineConfig(Section):
    """All settings of one engine."""

    policy_directory: Path
    """Local directory in Hugging Face form, or a hub name."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and computation."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the engine's own random stream."""
    max_model_tokens: PositiveInt = 1024
    """Longest prompt and completion together."""
    max_concurrent_sequences: PositiveInt = 128
    """Requests that advance together; further ones wait inside the engine."""
    cores: tuple[int, ...] = ()
    """CPU cores the process is bound to; as many threads compute. Empty: the libraries' default."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The engine's own settings."""

    @classmethod
    def from_process(cls, config: ProcessConfig) -> Self:
        """What a searcher's engine is told."""
        run = config.run
        return cls(
            policy_directory=config.policy_directory,
            dtype=run.policy.dtype,
            seed=(run.seed * _SEED_STRIDE + config.index) % 2**31,
            max_model_tokens=run.searchers.max_prompt_tokens + run.searchers.max_new_tokens,
            max_concurrent_sequences=run.searchers.max_concurrent_groups * run.searchers.num_completions,
            cores=config.cores,
            trust_remote_code=run.policy.trust_remote_code,
            options=run.searchers.engine_options,
        )

    def prompt_problem(self, token_ids: Sequence[int]) -> str | None:
        """Why a prompt cannot be answered, or None."""
        if 0 < len(token_ids) < self.max_model_tokens:
            return None
        return f"the prompt has {len(token_ids)} tokens; at least 1 and at most {self.max_model_tokens - 1} fit"


def parse_options(model: type[Options], options: dict[str, Any], *, engine: str) -> Options:
    """An engine's options as its own model.

    Raises:
        ConfigError: one sentence for each unknown or wrong option.
    """
    try:
        return model.model_validate(options)
    except ValidationError as error:
        known = ", ".join(model.model_fields)
        raise ConfigError(
            *(
                f"engine_options.{'.'.join(map(str, problem['loc']))} of engine '{engine}': {problem['msg'].lower()}; "
                f"known: {known}."
                for problem in error.errors()
            )
        ) from error
