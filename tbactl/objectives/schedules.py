"""Settings that move over a run: one line from a first to a final value. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tbactl.config.sections import ObjectiveSection, ReplaySection, SearchersSection


def linear(first: float, final: float | None, *, steps: int, step: int, stop_step: int | None = None) -> float:
    """The value at an optimizer step: on the line from `first` to `final` over `steps`, then `final`.

    Args:
        first: value at step 0.
        final: value from `steps` on; None: `first` for ever.
        steps: length of the line in optimizer steps, >= 0.
        step: optimizer steps done before this one, >= 0 (the policy version that is about to be trained).
        stop_step: where the value jumps to `final`, if before the end of the line.
    """
    assert step >= 0, f"step counts finished optimizer steps, so it is >= 0; got {step}"
    if final is None:
        return first
    if step >= min(steps, steps if stop_step is None else stop_step):
        return final
    progress = step / steps
    return (1.0 - progress) * first + progress * final


def beta_at(objective: ObjectiveSection, *, step: int) -> float:
    """KL coefficient for an optimizer step, > 0, in reward units per nat.

    A smaller beta lets the policy go further from the reference for the same reward (arXiv 2503.18929, section 3.3).
    Differs from the reference code in that the line begins at step 0 with `beta` itself; there it is one step late.
    """
    return linear(
        objective.beta,
        objective.beta_final,
        steps=objective.beta_steps,
        step=step,
        stop_step=objective.beta_stop_step,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the policy should become at an optimizer step: pi_ref^reference_exponent * exp(reward / beta) / Z."""

    beta: float
    """> 0, in reward units per nat: the recipe's KL coefficient times the target's temperature T."""
    reference_exponent: float
    """> 0: 1 / (gamma T), with the reference's temperature gamma."""


def target_at(objective: ObjectiveSection, *, step: int) -> Target:
    """The target of an optimizer step, tempered as in arXiv 2405.18540, where gamma and T are 1 unless configured."""
    temperature = target_temperature_at(objective, step=step)
    return Target(
        beta=temperature * beta_at(objective, step=step),
        reference_exponent=1.0 / (reference_temperature_at(objective, step=step) * temperature),
    )


def reference_temperature_at(objective: ObjectiveSection, *, step: int) -> float:
    """The reference's temperature gamma, > 0: the target holds pi_ref^(1 / gamma)."""
    return linear(
        objective.reference_temperature,
        objective.reference_temperature_final,
        steps=objective.reference_temperature_steps,
        step=step,
    )


def target_temperature_at(objective: ObjectiveSection, *, step: int) -> float:
    """The target's temperature T, > 0, by which its logarithm is divided."""
    return linear(
        objective.target_temperature,
        objective.target_temperature_final,
        steps=objective.target_temperature_steps,
        step=step,
    )


def target_metrics(objective: ObjectiveSection, *, step: int) -> dict[str, float]:
    """The settings of an optimizer step's target; its temperatures where it has any."""
    metrics = {"objective/beta/value": beta_at(objective, step=step)}
    if (objective.reference_temperature, objective.reference_temperature_final) != (1.0, None):
        metrics["objective/reference_temperature/value"] = reference_temperature_at(objective, step=step)
    if (objective.target_temperature, objective.target_temperature_final) != (1.0, None):
        metrics["objective/target_temperature/value"] = target_temperature_at(objective, step=step)
    return metrics


def sampling_temperature_at(searchers: SearchersSection, *, step: int) -> float:
    """Temperature that a searcher with this policy version samples at, > 0."""
    return linear(searchers.temperature, searchers.temperature_final, steps=searchers.temperature_steps, step=step)


def training_temperature(searchers: SearchersSection) -> float:
    """Temperature of policy and reference log-probs, > 0; the same all along.

    Where the sampling temperature moves, that is where it moves to: what is trained is the policy as it will be used,
    and hotter data before is off-policy data.
    """
    return searchers.temperature if searchers.temperature_final is None else searchers.temperature_final


def on_policy_fraction_at(replay: ReplaySection, *, step: int) -> float:
    """Probability m of drawing the most recent data, in [0, 1]."""
    return linear(
        replay.on_policy_fraction,
        replay.on_policy_fraction_final,
        steps=replay.on_policy_fraction_steps,
        step=step,
    )


def inverse_temperature_at(replay: ReplaySection, *, step: int) -> float:
    """Inverse temperature of the reward softmax, >= 0."""
    return linear(
        replay.inverse_temperature,
        replay.inverse_temperature_final,
        steps=replay.inverse_temperature_steps,
        step=step,
    )
