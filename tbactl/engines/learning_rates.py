"""The learning-rate schedules of transformers, as the trainer and supervised fine-tuning build them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from tbactl.config.problems import show_value
from tbactl.errors import ConfigError


def new_schedule(
    name: str, optimizer: Optimizer, *, warmup_steps: int, max_steps: int, options: Mapping[str, Any], section: str
) -> LRScheduler:
    """A schedule at its first value, which the optimizer has from here on.

    Args:
        name: one of `tbactl.config.schedules.SCHEDULES`.
        optimizer: with the peak learning rate.
        warmup_steps: length of the warm-up in optimizer steps.
        max_steps: optimizer steps in all.
        options: further arguments of the schedule.
        section: where the recipe has the schedule, for messages.

    Raises:
        ConfigError: the schedule refuses its options.
    """
    try:
        return get_scheduler(
            name,
            optimizer,
            num_warmup_steps=warmup_steps,
            # With both lengths transformers takes that of the plateau and warns in each process.
            num_training_steps=None if "num_stable_steps" in options else max_steps,
            scheduler_specific_kwargs=dict(options),
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(
            f"{section}.lr_schedule_options = {show_value(dict(options))}: schedule '{name}' refuses them: {error}. "
            f"Correct them, or choose another {section}.lr_schedule."
        ) from error
