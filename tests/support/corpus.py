"""Inputs that are tried before random ones: files under tests/corpus, one input each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import example

CORPUS = Path(__file__).parents[1] / "corpus"
Test = TypeVar("Test", bound=Callable[..., Any])


def corpus(kind: str) -> list[bytes]:
    """The inputs of a kind, by file name."""
    files = sorted((CORPUS / kind).iterdir())
    assert files, f"no corpus in {CORPUS / kind}"
    return [file.read_bytes() for file in files]


def corpus_first(kind: str, read: Callable[[bytes], Any] = bytes) -> Callable[[Test], Test]:
    """Decorates a hypothesis test of one argument: it gets the corpus first.

    Args:
        kind: directory of tests/corpus.
        read: from a file's bytes to the test's argument.
    """

    def decorate(test: Test) -> Test:
        for content in corpus(kind):
            test = example(read(content))(test)
        return test

    return decorate


def as_text(content: bytes) -> str:
    """For tests that take text; a lone surrogate stands for itself."""
    return content.decode("utf-8", errors="surrogatepass")
