"""Rules about the replay buffer: what it must hold, what is drawn from it, when data enters. Listed in `rules.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tbactl.config.derived import batch_trajectories
from tbactl.config.problems import Problem, setting_problem
from tbactl.config.sections import ReplaySection, RunConfig


def buffer_can_start(config: RunConfig) -> Iterator[Problem]:
    """The buffer must be able to hold what training waits for."""
    if config.replay.initial_trajectories > config.replay.capacity:
        yield setting_problem(
            config,
            "replay.initial_trajectories",
            f"must not exceed replay.capacity = {config.replay.capacity}: the buffer would never hold so many, "
            f"and training would never start.",
        )


def buffer_holds_a_batch(config: RunConfig) -> Iterator[Problem]:
    """B * K trajectories, K of them of one prompt, must fit."""
    trainer, replay = config.trainer, config.replay
    if replay.capacity < batch_trajectories(config):
        yield setting_problem(
            config,
            "replay.capacity",
            f"must be at least one batch, trainer.prompts_per_step * trainer.completions_per_prompt = "
            f"{trainer.prompts_per_step} * {trainer.completions_per_prompt} = {batch_trajectories(config)}.",
        )
    if replay.capacity_per_prompt < trainer.completions_per_prompt:
        yield setting_problem(
            config,
            "replay.capacity_per_prompt",
            f"must be at least trainer.completions_per_prompt = {trainer.completions_per_prompt}: "
            f"a training group could never be drawn.",
        )


def sync_mode_is_on_policy(config: RunConfig) -> Iterator[Problem]:
    """Mode sync promises on-policy training: new weights after every step, only their data."""
    if config.mode == "async":
        return
    if config.sync.period != 1:
        yield setting_problem(config, "sync.period", "must be 1 when mode = sync: searchers and trainer take turns.")
    for name in ("on_policy_fraction", "on_policy_fraction_final"):
        if getattr(config.replay, name) not in (1.0, None):
            yield setting_problem(
                config, f"replay.{name}", "must be 1.0 when mode = sync: only the data of the newest policy is used."
            )


def staleness_limit_leaves_data(config: RunConfig) -> Iterator[Problem]:
    """Async: data is up to k - 1 steps old before a sync, and one more while a completion is generated.

    With intake at-sync, what a step of a sync takes in comes from the weights of the sync before: 2k - 1.
    """
    limit, period = config.replay.max_staleness, config.sync.period
    if config.mode == "sync" or limit is None:
        return
    if config.replay.intake == "at-sync" and limit < 2 * period - 1:
        yield setting_problem(
            config,
            "replay.max_staleness",
            f"must be at least 2 * sync.period - 1 = {2 * period - 1} with replay.intake = at-sync: just before a sync "
            f"even the newest data is that old, and the trainer would starve.",
        )
    elif limit < period:
        yield setting_problem(
            config,
            "replay.max_staleness",
            f"must be at least sync.period = {period} when mode = async: just before a sync even the newest data is "
            f"that old, and the trainer would starve; raise it, or choose mode = 'sync' for on-policy training.",
        )


def samples_per_insert_bounds_are_in_order(config: RunConfig) -> Iterator[Problem]:
    """Above the lower bound data is taken in, below the upper one it is trained on."""
    low, high = config.replay.min_samples_per_insert, config.replay.max_samples_per_insert
    if high is not None and low > high:
        yield setting_problem(
            config,
            "replay.min_samples_per_insert",
            f"must not exceed replay.max_samples_per_insert = {high}: the searchers would wait for the trainer, and "
            f"the trainer for the searchers.",
        )


def samples_per_insert_lets_training_start(config: RunConfig) -> Iterator[Problem]:
    """What the first steps may be trained on must fit into the buffer."""
    num_needed = _first_step_needs(config)
    if config.mode == "async" and num_needed > config.replay.capacity:
        yield setting_problem(
            config,
            "replay.max_samples_per_insert",
            f"lets training begin after {num_needed} trajectories, {_steps_of_first_intake(config)} step(s) of "
            f"{batch_trajectories(config)} divided by it, and replay.capacity = {config.replay.capacity} holds fewer; "
            f"raise one of them.",
        )


def near_duplicates_can_be_found(config: RunConfig) -> Iterator[Problem]:
    """A measure that exists, and a tolerance that neither takes everything for the same nor nothing."""
    replay = config.replay
    if replay.near_duplicates == "embedding" and replay.embedder is None:
        yield setting_problem(
            config,
            "replay.near_duplicates",
            "needs replay.embedder: a sentence encoder's hub name or directory, or package:all-minilm-l6-v2.",
        )
    if replay.near_duplicates == "edit-distance" and not 0.0 < replay.near_duplicate_tolerance < 1.0:
        yield setting_problem(
            config,
            "replay.near_duplicate_tolerance",
            "must be between 0 and 1 with replay.near_duplicates = edit-distance: from 1 on any two completions are "
            "almost the same, and at 0 none are.",
        )
    if replay.near_duplicates == "embedding" and replay.near_duplicate_tolerance >= 1.0:
        yield setting_problem(
            config,
            "replay.near_duplicate_tolerance",
            "must be less than 1 with replay.near_duplicates = embedding: it is a cosine to be exceeded.",
        )


def training_starts_with_less_than_a_batch(config: RunConfig) -> Iterator[Problem]:
    """The first batches would repeat prompts."""
    if config.replay.initial_trajectories < batch_trajectories(config):
        yield setting_problem(
            config,
            "replay.initial_trajectories",
            f"is less than one batch of {batch_trajectories(config)}: the first steps draw some prompts twice.",
        )


def training_starts_later_than_it_seems(config: RunConfig) -> Iterator[Problem]:
    """The upper bound on reuse may need more data than the initial fill brings."""
    num_needed = _first_step_needs(config)
    if config.mode == "async" and config.replay.initial_trajectories < num_needed <= config.replay.capacity:
        yield setting_problem(
            config,
            "replay.initial_trajectories",
            f"is too few to train on at first: replay.max_samples_per_insert = "
            f"{config.replay.max_samples_per_insert} makes the first step wait for {num_needed}.",
        )


def cosine_of_the_default_tolerance(config: RunConfig) -> Iterator[Problem]:
    """The default tolerance is meant for edit distances."""
    replay = config.replay
    default = ReplaySection.model_fields["near_duplicate_tolerance"].default
    if replay.near_duplicates == "embedding" and replay.near_duplicate_tolerance == default:
        yield setting_problem(
            config,
            "replay.near_duplicate_tolerance",
            "is the default for edit distances; as a cosine it takes almost everything for the same. "
            "arXiv 2405.18540 uses 0.4.",
        )


def _first_step_needs(config: RunConfig) -> int:
    """Trajectories received that max_samples_per_insert asks for before the first step; 0 without a bound."""
    high = config.replay.max_samples_per_insert
    if high is None:
        return 0
    return math.ceil(_steps_of_first_intake(config) * batch_trajectories(config) / high)


def _steps_of_first_intake(config: RunConfig) -> int:
    if config.replay.intake == "continuous":
        return 1
    return min(config.sync.period, config.trainer.max_steps)
