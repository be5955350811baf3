"""From a configuration to a finished reward model's directory: comparisons, training, held-out measures, model card."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tbactl.config.reward import RewardConfig
from tbactl.errors import ConfigError, TaskError
from tbactl_preference.pairs import text_id
from tbactl_preference.reward_bradley_terry import fit_head
from tbactl_preference.reward_card import write_card
from tbactl_preference.reward_checks import check_training, output_directory
from tbactl_preference.reward_data import Comparisons, load_comparisons
from tbactl_preference.reward_encoder import EncoderFeatures
from tbactl_preference.reward_head import Array
from tbactl_preference.reward_head_model import HeadReward, HeadSettings
from tbactl_preference.reward_lexical import LexicalFeatures, WordStatistics
from tbactl_preference.reward_pairs import PreferencePair
from tbactl_preference.reward_quality import Quality

logger = logging.getLogger(__name__)

_CHUNK_PAIRS = 256


class TrainedReward(Protocol):
    """What every way of training gives."""

    num_parameters: int

    def margins(self, pairs: Sequence[PreferencePair]) -> Array:
        """Log-odds that the chosen text is the better one, shape (pairs,)."""
        ...

    def save(self, directory: Path) -> None:
        """Write what `load_reward_model` reads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Where the reward model is, and how good."""

    directory: Path
    held_out: Quality


def train_reward(config: RewardConfig) -> TrainingResult:
    """Train, measure and write a reward model into `runs_dir`/`name`.

    Raises:
        ConfigError: a setting names nothing, or the directory holds something else already.
        TaskError: the comparisons cannot be read, or there are none, or training diverged.
    """
    check_training(config)
    output = output_directory(config)
    comparisons = load_comparisons(config)
    logger.info(
        "comparisons train=%d held_out=%d equal_dropped=%d",
        len(comparisons.train),
        len(comparisons.held_out),
        comparisons.num_equal,
    )
    trained = _trained(config, comparisons.train)
    margins = trained.margins(comparisons.held_out)
    if not np.isfinite(margins).all():
        raise TaskError(
            f"the trained model's scores of {np.count_nonzero(~np.isfinite(margins))} held-out pairs are not finite; "
            f"it has diverged: lower training.learning_rate"
        )
    held_out = Quality.of(comparisons.held_out, margins)
    for kind, accuracy in held_out.kinds.items():
        logger.info(
            "held_out kind=%s accuracy=%.3f low=%.3f high=%.3f pairs=%d",
            kind,
            accuracy.accuracy,
            accuracy.low,
            accuracy.high,
            accuracy.num_pairs,
        )
    _write(output, config=config, comparisons=comparisons, trained=trained, held_out=held_out)
    logger.info("finished reward_model=%s accuracy=%.3f", output, held_out.overall.accuracy)
    return TrainingResult(directory=output, held_out=held_out)


class TrainedHead:
    """A head with the features that it was trained on."""

    def __init__(self, model: HeadReward) -> None:
        self.model = model
        self.num_parameters = model.head.num_parameters

    def margins(self, pairs: Sequence[PreferencePair]) -> Array:
        """As `TrainedReward.margins`."""
        chosen, rejected = _features(pairs, extract=self.model.features, what="held-out pairs")
        return self.model.head(chosen) - self.model.head(rejected)

    def save(self, directory: Path) -> None:
        """As `TrainedReward.save`."""
        self.model.save(directory)


def _trained(config: RewardConfig, pairs: Sequence[PreferencePair]) -> TrainedReward:
    if config.model.kind == "classifier":
        from tbactl_preference.reward_fine_tuning import fine_tuned

        return fine_tuned(config, pairs)
    return TrainedHead(_fitted(config, pairs))


def _fitted(config: RewardConfig, pairs: Sequence[PreferencePair]) -> HeadReward:
    features: EncoderFeatures | LexicalFeatures
    if config.model.kind == "lexical":
        statistics, pairs = _counted(pairs)
        features = LexicalFeatures(statistics)
    else:
        features = EncoderFeatures()
    chosen, rejected = _features(pairs, extract=features, what="pairs")
    head = fit_head(
        chosen,
        rejected,
        l2=config.model.l2,
        num_hidden=config.model.num_hidden,
        seed=config.seed,
        report=lambda iteration, loss: logger.info("fit iteration=%d objective=%.5f", iteration, loss),
    )
    kind = "lexical" if config.model.kind == "lexical" else "encoder"
    model = HeadReward(head, features=features, settings=HeadSettings(features=kind))
    return model.normalized(chosen, rejected)


def _counted(pairs: Sequence[PreferencePair]) -> tuple[WordStatistics, list[PreferencePair]]:
    """Words counted on half of the prompts, and the pairs of the other half.

    A text is familiar to the counts that it is part of: a head trained on those would trust familiarity too much.
    """
    counted = [pair for pair in pairs if text_id(pair.prompt) % 2]
    left = [pair for pair in pairs if not text_id(pair.prompt) % 2]
    if not counted or not left:
        raise ConfigError("lexical reward models count words on one half of the prompts; there are too few of them.")
    statistics = WordStatistics.of(
        documents=list(dict.fromkeys(pair.prompt for pair in pairs)),
        summaries=list(dict.fromkeys(pair.chosen for pair in counted)),
    )
    return statistics, left


def _features(
    pairs: Sequence[PreferencePair], *, extract: EncoderFeatures | LexicalFeatures, what: str
) -> tuple[Array, Array]:
    """Of the chosen and of the rejected texts: shapes (pairs, features)."""
    parts: tuple[list[Array], list[Array]] = ([], [])
    for start in range(0, len(pairs), _CHUNK_PAIRS):
        chunk = pairs[start : start + _CHUNK_PAIRS]
        prompts = [pair.prompt for pair in chunk]
        # Together, so that a text that both sides share is seen once.
        both = extract([*prompts, *prompts], [pair.chosen for pair in chunk] + [pair.rejected for pair in chunk])
        parts[0].append(both[: len(chunk)])
        parts[1].append(both[len(chunk) :])
        logger.info("features of %s: %d of %d", what, start + len(chunk), len(pairs))
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def _write(
    output: Path, *, config: RewardConfig, comparisons: Comparisons, trained: TrainedReward, held_out: Quality
) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        partial.chmod(0o755)
        trained.save(partial)
        write_card(
            partial,
            config=config,
            comparisons=comparisons,
            num_parameters=trained.num_parameters,
            held_out=held_out,
        )
        if output.exists():
            output.rmdir()
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
