"""The sentence encoder that diversity is measured with, and that the embedded judge reads answers by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tbactl.errors import ConfigError
from tbactl.policies.packaged_encoder import packaged_encoder
from tbactl_redteam.diversity import Vectors

EMBEDDED = "package:all-minilm-l6-v2"

# Texts to rows of length 1, shape (texts, dimensions).
Encode = Callable[[Sequence[str]], Vectors]


def sentence_encoder(source: str | None) -> Encode:
    """An encoder by directory or hub name, read at its first call; None: the embedded all-MiniLM-L6-v2 (384 numbers).

    Raises:
        ConfigError: the embedded one is not installed; at the first call, that there is none of that name.
    """
    # torch and transformers come with it.
    from tbactl.engines.sentence_encoder import SentenceEncoder

    return SentenceEncoder(
        str(embedded_directory()) if source is None else source, setting="task.options.diversity_encoder"
    )


def embedded_directory() -> Path:
    """Where the package keeps all-MiniLM-L6-v2 (Apache-2.0); nothing is imported.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return packaged_encoder(EMBEDDED)
    except ConfigError as error:
        raise ConfigError(
            f"{str(error).rstrip('.')}, or name another one in task.options.diversity_encoder and another judge in "
            f"task.options.judge."
        ) from None
