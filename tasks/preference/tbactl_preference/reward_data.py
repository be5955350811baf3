"""The comparisons that a reward model is trained on, and those that it is measured on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.config.reward import CONSTRUCTED, RewardConfig, RewardDataSection
from tbactl.errors import ConfigError, TaskError
from tbactl_preference.options import validated_options
from tbactl_preference.pairs import SummaryPair, text_id
from tbactl_preference.reward_checks import check_data
from tbactl_preference.reward_corruptions import KINDS, constructed_pairs
from tbactl_preference.reward_pairs import PreferencePair
from tbactl_preference.reward_tables import is_file, read_comparisons
from tbactl_preference.sources import load_pairs

# Held-out comparisons are the same ones for every seed of the training data.
HELD_OUT_SEED = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """`num_equal` rows were left out, since both of their completions are the same."""

    train: list[PreferencePair]
    held_out: list[PreferencePair]
    num_equal: int
    description: str
    """For the model card: where they come from."""


def load_comparisons(config: RewardConfig) -> Comparisons:
    """Read or construct the comparisons; no prompt is in both parts.

    Raises:
        ConfigError: a kind, an origin or a document option is unknown, or a file is missing.
        TaskError: the data cannot be read, is empty, or too little to hold some of it out.
    """
    data = config.data
    check_data(data)
    found = _constructed(config) if data.source == CONSTRUCTED else _of_table(data, seed=config.seed)
    for part, name in ((found.train, "train"), (found.held_out, "hold out")):
        if not part:
            raise TaskError(f"{data.source}: there is no pair to {name}; give more data or another share")
    return Comparisons(
        train=_sample(found.train, data.max_pairs, seed=config.seed),
        held_out=_sample(found.held_out, data.max_held_out_pairs, seed=config.seed),
        num_equal=found.num_equal,
        description=found.description,
    )


def _constructed(config: RewardConfig) -> Comparisons:
    data = config.data
    kinds = data.kinds or KINDS
    options = validated_options(data.options)
    train = _of_origins(load_pairs(options, split="train"), origins=data.origins)
    test = load_pairs(options, split="test")
    chosen_origins = f" whose origin begins with {', '.join(data.origins)}" if data.origins else ""
    return Comparisons(
        train=constructed_pairs(train, kinds=kinds, seed=config.seed),
        held_out=constructed_pairs(test, kinds=kinds, seed=HELD_OUT_SEED),
        num_equal=0,
        description=(
            f"Constructed: for each of {len(train)} documents of `{options.documents}`{chosen_origins}, the human "
            f"summary against spoilt ones ({', '.join(kinds)}). **No person compared anything.** Held out: "
            f"{len(test)} documents of the split `test`"
        ),
    )


def _of_origins(pairs: Sequence[SummaryPair], *, origins: Sequence[str]) -> list[SummaryPair]:
    found = [pair for pair in pairs if not origins or pair.origin.startswith(tuple(origins))]
    for origin in origins:
        if not any(pair.origin.startswith(origin) for pair in found):
            raise ConfigError(f"data.origins: no document's origin begins with '{origin}'.")
    return found


def _of_table(data: RewardDataSection, *, seed: int) -> Comparisons:
    pairs, num_equal = read_comparisons(data)
    parts: tuple[list[PreferencePair], list[PreferencePair]] = ([], [])
    for pair in pairs:
        parts[_is_held_out(pair.prompt, share=data.held_out_fraction, seed=seed)].append(pair)
    name = Path(data.source).name if is_file(data.source) else data.source
    return Comparisons(
        train=parts[0],
        held_out=parts[1],
        num_equal=num_equal,
        description=(
            f"`{name}`, columns `{data.chosen_column}` (better) and `{data.rejected_column}` (worse); "
            f"{data.held_out_fraction:.0%} of the prompts held out"
        ),
    )


def _is_held_out(prompt: str, *, share: float, seed: int) -> bool:
    return random.Random(text_id(f"{seed}/{prompt}")).random() < share


def _sample(pairs: list[PreferencePair], size: int, *, seed: int) -> list[PreferencePair]:
    """`size` of the pairs in their order; 0: all."""
    if not size or size >= len(pairs):
        return pairs
    return [pairs[index] for index in sorted(random.Random(seed).sample(range(len(pairs)), size))]
