"""How the KL coefficient changes over a run. Imports no torch."""

from __future__ import annotations

from tbactl.config.sections import ObjectiveSection


def beta_at(objective: ObjectiveSection, *, step: int) -> float:
    """KL coefficient for an optimizer step: linear from `beta` to `beta_final` over `beta_steps`, then constant.

    A smaller beta lets the policy go further from the reference for the same reward (arXiv 2503.18929, section 3.3).
    Differs from the reference code: there the GSM8K schedule is the same line one step late, while TL;DR follows a
    128-step line and jumps to the final value at step 32; that jump is not offered.

    Args:
        objective: the recipe's section; without `beta_final` beta stays as it is.
        step: optimizer steps done before this one, >= 0 (the policy version that is about to be trained).

    Returns:
        beta > 0, in reward units per nat.
    """
    assert step >= 0, f"step counts finished optimizer steps, so it is >= 0; got {step}"
    if objective.beta_final is None:
        return objective.beta
    if step >= objective.beta_steps:
        return objective.beta_final
    progress = step / objective.beta_steps
    return (1.0 - progress) * objective.beta + progress * objective.beta_final
