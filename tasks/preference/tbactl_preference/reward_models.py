"""Reward models by name or path. Light to import: `reward_model_problem` is asked before anything runs."""

from __future__ import annotations

import difflib
from pathlib import Path

from tbactl.errors import ConfigError
from tbactl_preference.scoring import RewardModel

# Small heads that come with this package; `tbactl reward train reward-tldr` and `reward-tldr-gold` make them.
SUMMARY = "summary-minilm"
GOLD = "summary-gold"
EMBEDDED = (SUMMARY, GOLD)
_WEIGHTS = Path(__file__).parent / "reward_weights"


def reward_model_problem(name: str) -> str | None:
    """Why there is no such reward model (a clause, without the setting's name), or None; loads nothing."""
    if name in EMBEDDED:
        return None
    if _is_path(name):
        return None if Path(name).expanduser().is_dir() else "there is no such directory"
    if "/" in name:  # a hub name
        return None
    near = difflib.get_close_matches(name, EMBEDDED, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return (
        f"there is no reward model '{name}'{hint}; choose 'rouge-l', {', '.join(map(repr, EMBEDDED))}, or give a "
        f"directory or hub name"
    )


def load_reward_model(name: str) -> RewardModel:
    """Read a reward model.

    Args:
        name: of an embedded one, a directory that `tbactl reward train` wrote, or a directory or hub name of an
            `AutoModelForSequenceClassification` with one output.

    Raises:
        ConfigError: there is none of that name, or it cannot be loaded.
    """
    problem = reward_model_problem(name)
    if problem is not None:
        raise ConfigError(f"reward model '{name}': {problem}.")
    directory = _WEIGHTS / name if name in EMBEDDED else Path(name).expanduser()
    if (directory / "reward.json").is_file():
        from tbactl_preference.reward_head_model import HeadReward

        return HeadReward.load(directory)
    # Needs torch and transformers.
    from tbactl_preference.reward_classifier import ClassifierReward

    return ClassifierReward.load(name)


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or Path(name).is_dir()
