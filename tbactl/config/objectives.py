"""The options of each built-in objective, and how they are checked. Imports no torch: a dry run comes through here."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from tbactl import registry
from tbactl.config.problems import ALLOWED, Problem, show_value
from tbactl.config.sections import ObjectiveSection, PositiveFloat, Section
from tbactl.config.settings import dotted
from tbactl.config.toml_lines import KeyPath
from tbactl.errors import ConfigError

Options = TypeVar("Options", bound=Section)

ClipLow = Annotated[float, Field(ge=0.0, le=1.0)]

AtLeastOne = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


class TrajectoryBalanceOptions(Section):
    """Of `trajectory-balance`."""

    log_z: Literal["vargrad", "learned"] = "vargrad"
    """`vargrad`: estimated from the group. `learned`: by a head on the prompt, trained with the policy."""
    log_z_learning_rate: PositiveFloat = 1e-3
    """Of that head, at its peak; it follows the trainer's schedule. The policy's own rate would take it nowhere."""
    log_z_initial: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """What that head says of every prompt at first, in nats. Good: (mean reward) / beta."""

    @model_validator(mode="after")
    def _settings_of_the_head_need_it(self) -> Self:
        useless = sorted({"log_z_learning_rate", "log_z_initial"} & self.model_fields_set)
        if self.log_z != "learned" and useless:
            raise ValueError(f'{" and ".join(useless)} without log_z = "learned" has no effect; set it, or remove them')
        return self


class TbaPrimeOptions(Section):
    """Of `tba-prime`."""

    importance_sampling: bool = True
    """Weight each token by pi_theta / behaviour."""
    ratio_cap: AtLeastOne = 8.0
    """That weight's upper bound; beyond it a token has no gradient."""
    kl_clamp: PositiveFloat = 10.0
    """A token's log-ratio to the reference counts at most this much, in nats."""

    @model_validator(mode="after")
    def _cap_needs_weights(self) -> Self:
        if not self.importance_sampling and "ratio_cap" in self.model_fields_set:
            raise ValueError("ratio_cap has no effect with importance_sampling = false; set that to true, or remove it")
        return self


class ImportanceSampledOptions(Section):
    """Shared by objectives that can weight their policy gradient by truncated importance weights."""

    importance_sampling_cap: AtLeastOne | None = None
    """Weight by min(pi_theta / behaviour, this), without gradient. None: no weights."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Weigh each token by its own ratio, or all tokens of a completion by the completion's (unbiased, but noisy)."""

    @model_validator(mode="after")
    def _level_needs_cap(self) -> Self:
        if self.importance_sampling_cap is None and "importance_sampling_level" in self.model_fields_set:
            raise ValueError("importance_sampling_level has no effect without importance_sampling_cap; set the cap too")
        return self


class ReinforceOptions(ImportanceSampledOptions):
    """Of `reinforce`."""

    baseline: Literal["group-mean", "zero"] = "group-mean"
    """Subtracted from the rewards of a prompt."""


class RlooOptions(ImportanceSampledOptions):
    """Of `rloo`."""


class ClippedOptions(Section):
    """Shared by objectives with a clipped ratio pi_theta / behaviour."""

    clip_low: ClipLow = 0.2
    """The ratio counts as at least 1 - this."""
    clip_high: PositiveFloat = 0.2
    """The ratio counts as at most 1 + this."""


class ProximalRlooOptions(ClippedOptions):
    """Of `proximal-rloo`."""


class PpoClipOptions(ClippedOptions):
    """Of `ppo-clip`."""


class TokenRatioOptions(ClippedOptions):
    """Shared by the GRPO family."""

    importance_sampling_cap: AtLeastOne | None = None
    """Instead of clipping, weight -log pi_theta by min(ratio, this), without gradient (CISPO). None: clip."""
    kl_in_loss: bool = True
    """Add beta times the k3 estimate of the KL divergence from the reference. False: beta has no effect."""

    @model_validator(mode="after")
    def _cap_replaces_clip(self) -> Self:
        useless = sorted({"clip_low", "clip_high"} & self.model_fields_set)
        if self.importance_sampling_cap is not None and useless:
            raise ValueError(f"importance_sampling_cap replaces clipping; remove it, or {' and '.join(useless)}")
        return self


class DrGrpoOptions(TokenRatioOptions):
    """Of `dr-grpo`."""


class GrpoOptions(TokenRatioOptions):
    """Of `grpo`."""

    loss_type: Literal["grpo", "dapo"] = "grpo"
    """`grpo`: mean over each completion's tokens, then over completions. `dapo`: mean over all tokens of the step."""
    scale_rewards: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""


class KimiOptions(Section):
    """Of `kimi`."""

    importance_sampling_cap: AtLeastOne | None = None
    """Weight each completion by min(pi_theta / behaviour, this), without gradient. None: no weights."""


class OnlineDpoOptions(Section):
    """Of `online-dpo`."""


OPTION_MODELS: Mapping[str, type[Section]] = {
    "trajectory-balance": TrajectoryBalanceOptions,
    "tba-prime": TbaPrimeOptions,
    "reinforce": ReinforceOptions,
    "rloo": RlooOptions,
    "proximal-rloo": ProximalRlooOptions,
    "ppo-clip": PpoClipOptions,
    "grpo": GrpoOptions,
    "dr-grpo": DrGrpoOptions,
    "kimi": KimiOptions,
    "online-dpo": OnlineDpoOptions,
}
"""Objectives of other packages check their options themselves, when the trainer builds them: importing them here could
import torch."""


def parse_objective_options(model: type[Options], options: Mapping[str, Any], *, kind: str) -> Options:
    """An objective's options as its own model.

    Args:
        model: the options that the objective has.
        options: what the user wrote in `objective.options`.
        kind: the objective's registered name, for messages.

    Raises:
        ConfigError: one sentence for each unknown or wrong option, beginning with its full name.
    """
    try:
        return model.model_validate(dict(options), strict=True)
    except ValidationError as error:
        raise ConfigError(*(problem.sentence for problem in _problems(error, model, options, kind=kind))) from error


def build_objective(kind: str, options: Mapping[str, Any]) -> Any:
    """An installed objective with its options, which are its constructor's keyword arguments. Imports torch.

    Raises:
        ConfigError: the objective is unknown, or refuses an option.
    """
    objective_class = registry.load("tbactl.objectives", kind)
    try:
        return objective_class(**options)
    except TypeError as error:
        # Python's own refusal of a keyword, where an objective of another package leaves it at that.
        raise ConfigError(f"objective '{kind}' refuses its options: {error}.") from None


def objective_option_problems(options: Mapping[str, Any], *, kind: str) -> Iterator[Problem]:
    """What is wrong with the options of a built-in objective; nothing for other kinds."""
    model = OPTION_MODELS.get(kind)
    if model is None:
        return
    try:
        model.model_validate(dict(options), strict=True)
    except ValidationError as error:
        yield from _problems(error, model, options, kind=kind)


def _problems(
    error: ValidationError, model: type[Section], options: Mapping[str, Any], *, kind: str
) -> Iterator[Problem]:
    for details in error.errors():
        path: KeyPath = ("objective", "options", *details["loc"][:1])
        template = ALLOWED.get(details["type"])
        if not details["loc"]:
            yield Problem(path, f"{dotted(path)} of '{kind}': {details['msg'].removeprefix('Value error, ')}.")
        elif details["type"] == "extra_forbidden":
            hint = _hint(str(path[-1]), list(model.model_fields))
            yield Problem(path, f"{dotted(path)}: objective '{kind}' has no such option; {hint}")
        else:
            allowed = template.format(**details.get("ctx", {})) if template else details["msg"].lower()
            value = show_value(options[str(path[-1])])
            yield Problem(path, f"{dotted(path)} = {value} of objective '{kind}': {allowed}.")


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    if name in ObjectiveSection.model_fields:
        return f"did you mean 'objective.{name}'?"
    return f"it has {', '.join(known)}." if known else "it has none; remove it."
