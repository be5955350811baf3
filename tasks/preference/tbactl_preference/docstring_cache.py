"""Keeps the pairs that documentation strings give, since parsing a few thousand source files takes seconds."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tbactl.policies.cache import cache_root
from tbactl_preference import docstring_text, docstrings
from tbactl_preference.docstrings import DISTRIBUTIONS, docstring_pairs
from tbactl_preference.pairs import SPLITS, SummaryPair

logger = logging.getLogger(__name__)


def cached_docstring_pairs(split: str) -> list[SummaryPair]:
    """As `docstring_pairs`, from a file in the cache directory if these packages in these versions were read before.

    Raises:
        TaskError: none of the split's packages is installed.
    """
    file = cache_root() / "docstrings" / f"{_key()}-{split}.jsonl"
    pairs = _read(file)
    if pairs is None:
        by_split = docstring_pairs()
        for name in SPLITS:
            _write(file.with_name(f"{_key()}-{name}.jsonl"), by_split[name])
        pairs = by_split[split]
    return pairs


def _key() -> str:
    """Of everything that the pairs depend on: versions of packages and of Python, and the code that reads them."""
    digest = hashlib.blake2b(digest_size=8)
    for name in DISTRIBUTIONS:
        try:
            digest.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{name}\n".encode())
    digest.update(repr(sys.version_info[:2]).encode())
    for module in (docstrings, docstring_text):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def _read(file: Path) -> list[SummaryPair] | None:
    try:
        return [SummaryPair(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        logger.warning("docstrings cache=%s is unusable and made anew: %s", file, error)
        return None


def _write(file: Path, pairs: list[SummaryPair]) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(dataclasses.asdict(pair)) for pair in pairs]
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        logger.warning("docstrings cache=%s cannot be written: %s; they are read again next time", file, error)
        with contextlib.suppress(OSError):
            partial.unlink()
