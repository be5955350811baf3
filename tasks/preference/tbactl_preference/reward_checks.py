"""What can be said against a reward training before any data is read. Light to import: `--dry-run` asks it too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tbactl.config.reward import CONSTRUCTED, RewardConfig, RewardDataSection
from tbactl.errors import ConfigError
from tbactl.registry import suggestion
from tbactl_preference.docstrings import PACKAGES
from tbactl_preference.options import DOCSTRINGS, validated_options
from tbactl_preference.reward_corruptions import KINDS
from tbactl_preference.reward_tables import is_file


def output_directory(config: RewardConfig) -> Path:
    """Where the reward model is written."""
    return config.runs_dir.expanduser() / config.name


def check_training(config: RewardConfig) -> None:
    """Refuse what cannot succeed.

    Raises:
        ConfigError: with one sentence for each mistake: a setting names nothing, or the output directory is not empty.
    """
    problems = [*_data_problems(config.data), *_start_problems(config), *_output_problems(output_directory(config))]
    if problems:
        raise ConfigError(*problems)


def check_data(data: RewardDataSection) -> None:
    """Refuse comparisons that cannot be there.

    Raises:
        ConfigError: with one sentence for each mistake: a kind, an origin or a document option is unknown, or a file is
            missing.
    """
    problems = list(_data_problems(data))
    if problems:
        raise ConfigError(*problems)


def _data_problems(data: RewardDataSection) -> Iterator[str]:
    if data.source == CONSTRUCTED:
        yield from _constructed_problems(data)
    elif not is_file(data.source) and "/" not in data.source:
        yield (
            f"data.source = '{data.source}'{suggestion(data.source, [CONSTRUCTED])}: give '{CONSTRUCTED}', a .jsonl, "
            f".jsonl.gz or .parquet file, or a hub name like owner/name."
        )
    elif is_file(data.source) and not Path(data.source).expanduser().is_file():
        yield f"data.source = '{data.source}': there is no such file."


def _constructed_problems(data: RewardDataSection) -> Iterator[str]:
    for kind in data.kinds:
        if kind not in KINDS:
            yield f"data.kinds: there is no '{kind}'{suggestion(kind, list(KINDS))}; known: {', '.join(KINDS)}."
    try:
        documents = validated_options(data.options).documents
    except ConfigError as error:
        yield from (problem.replace("task.options.", "data.options.") for problem in error.problems)
        return
    # Of other documents the origins are known only once they are read.
    known = list(dict.fromkeys(package.partition("/")[0] for package in PACKAGES["train"]))
    for origin in data.origins if documents == DOCSTRINGS else ():
        if not any(package.startswith(origin) or origin.startswith(package) for package in known):
            yield (
                f"data.origins: no document's origin begins with '{origin}'{suggestion(origin, known)}; the packages "
                f"are {', '.join(known)}."
            )


def _start_problems(config: RewardConfig) -> Iterator[str]:
    path = config.model.path
    # What does not look like a path may be a hub name.
    if path is not None and path.startswith((".", "/", "~")) and not os.path.isdir(os.path.expanduser(path)):
        yield f"model.path = '{path}': there is no such directory."


def _output_problems(output: Path) -> Iterator[str]:
    try:
        is_taken = output.exists() and (not output.is_dir() or any(output.iterdir()))
    except OSError as error:
        yield f"{output} cannot be used: {error.strerror}; choose another by --output DIRECTORY."
        return
    if is_taken:
        yield f"{output} exists and is not empty; remove it, or choose another by --output DIRECTORY."
