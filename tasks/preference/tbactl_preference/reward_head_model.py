"""Reward models of a small head over fixed features, and the directories that hold them.

reward.json            which features, and how scores are scaled
reward.safetensors     the head's weights, and the counts that lexical features are made of
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from tbactl.errors import ConfigError
from tbactl_preference.reward_encoder import EncoderFeatures
from tbactl_preference.reward_head import Array, Head
from tbactl_preference.reward_lexical import LexicalFeatures, WordStatistics

SETTINGS_FILE = "reward.json"
WEIGHTS_FILE = "reward.safetensors"
FORMAT = 1
_HEAD = "head."
_STATISTICS = "statistics."

FeatureKind = Literal["encoder", "lexical"]
FEATURE_KINDS: tuple[FeatureKind, ...] = ("encoder", "lexical")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """What `reward.json` holds. A score is shift + scale x log-odds of the head."""

    features: FeatureKind
    scale: float = 1.0
    shift: float = 0.0
    format: int = FORMAT


class HeadReward:
    """A head over the features of a sentence encoder, or over lexical ones."""

    def __init__(self, head: Head, *, features: EncoderFeatures | LexicalFeatures, settings: HeadSettings) -> None:
        self.head = head
        self.features = features
        self.settings = settings

    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """As `RewardModel.score`. White space around a completion does not count."""
        if not completions:
            return []
        return self.scores_of(self.features(prompts, completions)).tolist()

    def scores_of(self, features: Array) -> Array:
        """Shape (texts,), of features of shape (texts, features)."""
        return self.settings.shift + self.settings.scale * self.head(features)

    def normalized(self, chosen: Array, rejected: Array) -> HeadReward:
        """With scale and shift such that chosen texts score 1 on average and rejected ones -1.

        Args:
            chosen: features, shape (pairs, features).
            rejected: likewise.
        """
        best, worst = float(self.head(chosen).mean()), float(self.head(rejected).mean())
        if best <= worst:  # nothing was learnt; the scale then means nothing either
            return self
        scale = 2.0 / (best - worst)
        settings = replace(self.settings, scale=scale, shift=-scale * (best + worst) / 2)
        return HeadReward(self.head, features=self.features, settings=settings)

    def save(self, directory: Path) -> None:
        """Write both files. `directory` must be there."""
        tensors: dict[str, np.ndarray] = {f"{_HEAD}{name}": tensor for name, tensor in self.head.tensors().items()}
        if isinstance(self.features, LexicalFeatures):
            counts = self.features.statistics.tensors()
            tensors |= {f"{_STATISTICS}{name}": tensor for name, tensor in counts.items()}
        weights = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
        (directory / WEIGHTS_FILE).write_bytes(weights)
        text = json.dumps(asdict(self.settings), indent=2) + "\n"
        (directory / SETTINGS_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> HeadReward:
        """Read what `save` wrote.

        Raises:
            ConfigError: a file is missing or damaged, or of another version of tbactl.
        """
        settings = _read_settings(directory / SETTINGS_FILE)
        try:
            tensors = load_file(directory / WEIGHTS_FILE)
            head = Head.from_tensors(_below(_HEAD, tensors))
            if settings.features == "encoder":
                return cls(head, features=EncoderFeatures(), settings=settings)
            statistics = WordStatistics.from_tensors(_below(_STATISTICS, tensors))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise ConfigError(f"reward model '{directory}': cannot read {WEIGHTS_FILE}: {error}.") from error
        return cls(head, features=LexicalFeatures(statistics), settings=settings)


def _read_settings(file: Path) -> HeadSettings:
    try:
        values: Any = json.loads(file.read_bytes())
        settings = HeadSettings(**values)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"reward model: cannot use {file}: {error}.") from error
    if settings.format != FORMAT or settings.features not in FEATURE_KINDS:
        raise ConfigError(
            f"reward model: {file} has format {settings.format} and features '{settings.features}'; this version of "
            f"tbactl reads format {FORMAT} with {' or '.join(FEATURE_KINDS)}; train it again."
        )
    return settings


def _below(prefix: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
