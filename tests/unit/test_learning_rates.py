"""What a recipe may say of a learning-rate schedule is what transformers can build and compute."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tbactl.config import rules
from tbactl.config.schedules import OPTION_TYPES, SCHEDULES, schedule_problems
from tbactl.config.sections import SftConfig
from tbactl.engines.learning_rates import new_schedule
from tbactl.errors import ConfigError

LEARNING_RATE = 1e-3
WARMUP_STEPS, MAX_STEPS = 3, 10

# Two values that each option may have, the least and another.
VALUES: dict[str, tuple[Any, ...]] = {
    "num_cycles": (0, 1.5),
    "min_lr": (0.0, LEARNING_RATE),
    "min_lr_rate": (0, 1.0),
    "warmup_lr_rate": (0.0, 0.5),
    "timescale": (1, 10_000),
    "lr_end": (0.0, 0.99 * LEARNING_RATE),
    "power": (0, 2.5),
    "num_decay_steps": (0, 40),
    "num_stable_steps": (0, 40),
    "warmup_type": ("linear", "cosine", "1-sqrt"),
    "decay_type": ("linear", "cosine", "1-sqrt"),
    "min_lr_ratio": (0.0, 1),
}


def complete_options(name: str) -> list[dict[str, Any]]:
    """For each option that a schedule takes, options with one value of it, and what is required besides."""
    schedule = SCHEDULES[name]
    needed = {schedule.required[0]: VALUES[schedule.required[0]][0]} if schedule.required else {}
    found = [needed]
    for option in (*schedule.required, *schedule.optional):
        base = {} if option in schedule.required else needed
        found += [base | {option: value} for value in VALUES[option]]
    return found


def learning_rates(name: str, options: dict[str, Any], *, warmup_steps: int = WARMUP_STEPS) -> list[float]:
    """Of every update up to the last, and of a few that come after it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LEARNING_RATE)
    schedule = new_schedule(
        name, optimizer, warmup_steps=warmup_steps, max_steps=MAX_STEPS, options=options, section="trainer"
    )
    rates = []
    for _ in range(MAX_STEPS + 3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def problems(name: str, options: dict[str, Any], *, learning_rate: float = LEARNING_RATE) -> list[tuple[str, str]]:
    found = schedule_problems(name, options, learning_rate=learning_rate, section="trainer")
    return [(".".join(map(str, problem.path)), problem.sentence) for problem in found]


def test_every_option_of_a_schedule_has_a_type() -> None:
    assert {option for schedule in SCHEDULES.values() for option in (*schedule.required, *schedule.optional)} == set(
        OPTION_TYPES
    )


@pytest.mark.parametrize("warmup_steps", [0, WARMUP_STEPS])
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in SCHEDULES for options in complete_options(name)]
)
def test_transformers_computes_each_schedule_with_options_that_are_allowed(
    name: str, options: dict[str, Any], warmup_steps: int
) -> None:
    assert problems(name, options) == []
    rates = learning_rates(name, options, warmup_steps=warmup_steps)
    assert all(0.0 <= rate <= LEARNING_RATE * (1 + 1e-12) for rate in rates), rates


@pytest.mark.parametrize(
    ("name", "options", "blamed", "words"),
    [
        ("warmup_stable_decay", {"num_decay_steps": "abc"}, "num_decay_steps", '= "abc": must be an integer.'),
        ("warmup_stable_decay", {"num_decay_steps": 2.5}, "num_decay_steps", "= 2.5: must be an integer."),
        ("warmup_stable_decay", {"num_decay_steps": -1}, "num_decay_steps", "= -1: must be at least 0."),
        ("warmup_stable_decay", {"num_decay_steps": 2, "num_stable_steps": True}, "num_stable_steps", "an integer"),
        (
            "warmup_stable_decay",
            {"num_decay_steps": 2, "decay_type": "foo"},
            "decay_type",
            "= \"foo\": must be one of 'linear', 'cosine' or '1-sqrt'.",
        ),
        ("warmup_stable_decay", {"num_decay_steps": 2, "warmup_type": "exp"}, "warmup_type", "must be one of"),
        ("warmup_stable_decay", {"num_decay_steps": 2, "min_lr_ratio": 1.5}, "min_lr_ratio", "must be at most 1"),
        (
            "cosine_with_min_lr",
            {"min_lr": 1e-5, "min_lr_rate": 0.1},
            "min_lr_rate",
            "takes only one of min_lr, min_lr_rate; remove the other",
        ),
        ("cosine_with_min_lr", {"min_lr": 2e-3}, "min_lr", "must be at most trainer.learning_rate = 0.001, the peak"),
        ("cosine_with_min_lr", {"min_lr": None}, "min_lr", "= none: must be a number"),
        ("cosine_warmup_with_min_lr", {"min_lr_rate": -0.1}, "min_lr_rate", "must be at least 0"),
        ("cosine", {"num_cycles": [1]}, "num_cycles", "= [1]: must be a number"),
        ("cosine", {"num_cycles": float("inf")}, "num_cycles", "must be a finite number"),
        ("inverse_sqrt", {"timescale": 0}, "timescale", "must be at least 1"),
        (
            "polynomial",
            {"lr_end": 1e-3},
            "lr_end",
            "= 0.001: must be less than trainer.learning_rate = 0.001, the peak",
        ),
        ("polynomial", {"power": "2"}, "power", "must be a number"),
    ],
)
def test_option_that_transformers_cannot_use_is_refused_before_the_run(
    name: str, options: dict[str, Any], blamed: str, words: str
) -> None:
    ((path, sentence),) = problems(name, options)
    assert path == f"trainer.lr_schedule_options.{blamed}"
    assert sentence.startswith(path) and words in sentence


def test_polynomial_schedule_begins_above_its_end_also_where_the_end_is_the_default() -> None:
    ((path, sentence),) = problems("polynomial", {}, learning_rate=1e-7)
    assert path == "trainer.learning_rate"
    assert sentence == (
        "trainer.learning_rate = 1e-07: must be greater than 1e-07, where schedule 'polynomial' ends; "
        "trainer.lr_schedule_options.lr_end sets another end."
    )
    assert problems("polynomial", {"lr_end": 1e-8}, learning_rate=1e-7) == []
    assert problems("linear", {}, learning_rate=1e-7) == []


def test_options_of_a_stage_of_fine_tuning_are_checked() -> None:
    stage = {"name": "s", "mixture": {"a": 1.0}, "num_tokens": 1, "learning_rate": 1e-8, "lr_schedule": "polynomial"}
    recipe = {"name": "t", "task": {"kind": "fake"}, "stages": [stage]}
    (problem,) = rules.sft_problems(SftConfig.model_validate(recipe))
    assert problem.path == ("stages", 0, "learning_rate")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("warmup_stable_decay", {"num_decay_steps": 2, "decay_type": "foo"}),
        ("warmup_stable_decay", {"num_decay_steps": "abc"}),
        ("cosine_with_min_lr", {"min_lr": 1e-5, "min_lr_rate": 0.1}),
        ("cosine", {"colour": "red"}),
        ("inverse_sqrt", {"timescale": 0}),
    ],
)
def test_schedule_that_refuses_its_options_says_so_without_a_traceback(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^trainer\.lr_schedule_options = .*: schedule '{name}' refuses them: "):
        learning_rates(name, options, warmup_steps=0)


def test_length_of_the_plateau_is_taken_without_a_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rates = learning_rates("warmup_stable_decay", {"num_stable_steps": 4, "num_decay_steps": 100})
    assert [str(warning.message) for warning in caught if "num_stable_steps" in str(warning.message)] == []
    assert [round(rate / LEARNING_RATE, 6) for rate in rates[:8]] == [0.0, 0.333333, 0.666667, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rates[8] < LEARNING_RATE


@pytest.mark.parametrize(("num_decay_steps", "reaches_peak"), [(MAX_STEPS - WARMUP_STEPS, True), (40, False)])
def test_decay_that_is_longer_than_what_is_left_never_reaches_the_peak(
    num_decay_steps: int, reaches_peak: bool
) -> None:
    """What `rules.decay_begins_in_the_warmup` warns of."""
    rates = learning_rates("warmup_stable_decay", {"num_decay_steps": num_decay_steps})
    assert (max(rates) == LEARNING_RATE) == reaches_peak


def test_first_update_of_a_warmup_has_no_learning_rate_and_without_one_it_has_the_peak() -> None:
    """What docs/algorithm.md says of the reference code's schedule."""
    assert learning_rates("linear", {})[:4] == pytest.approx(
        [0.0, LEARNING_RATE / 3, LEARNING_RATE * 2 / 3, LEARNING_RATE]
    )
    assert learning_rates("linear", {}, warmup_steps=0)[0] == LEARNING_RATE
