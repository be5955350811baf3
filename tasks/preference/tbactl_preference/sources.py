"""From the options to the pairs of a split."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tbactl.errors import TaskError
from tbactl_preference.docstring_cache import cached_docstring_pairs
from tbactl_preference.options import DOCSTRINGS, TLDR, PreferenceOptions, is_table
from tbactl_preference.pairs import SummaryPair, text_id
from tbactl_preference.tables import pairs_of_file, pairs_of_hub

# The data set of the paper: Reddit posts formatted as prompts that end in "TL;DR:", with the posters' own summaries.
TLDR_HUB_NAME = "vwxyzjn/summarize_from_feedback_tldr_3_filtered_oai_preprocessing_1706381144"
_TEST_ONE_IN = 8


def load_pairs(options: PreferenceOptions, *, split: str) -> list[SummaryPair]:
    """All pairs of "train" or "test", in an order that never changes; of equal documents the first.

    Raises:
        TaskError: the data cannot be read, or there is none.
    """
    source = options.data if split == "test" and options.data else options.documents
    if source == DOCSTRINGS:
        return cached_docstring_pairs(split)
    if not is_table(source):
        return _unique(_of_hub(source, options=options, split=split))
    pairs = pairs_of_file(
        Path(source).expanduser(), document_column=options.prompt_column, summary_column=options.summary_column
    )
    # One file for both splits; without its held-out eighth also where `data` holds others: what is trained on must not
    # depend on what is measured on.
    if source == options.documents:
        pairs = [pair for pair in pairs if split_of(pair.document) == split]
    if not pairs:
        raise TaskError(f"{source} holds too few documents: none of them is in the split '{split}'")
    return _unique(pairs)


def split_of(document: str) -> str:
    """The one split in which a document of a file may occur: one in eight belongs to "test"."""
    return "test" if text_id(document) % _TEST_ONE_IN == 0 else "train"


def _of_hub(source: str, *, options: PreferenceOptions, split: str) -> list[SummaryPair]:
    is_tldr = source == TLDR
    test_split = options.test_split or ("validation" if is_tldr else "test")
    return pairs_of_hub(
        TLDR_HUB_NAME if is_tldr else source,
        split=test_split if split == "test" else "train",
        document_column=options.prompt_column or ("query" if is_tldr else None),
        summary_column=options.summary_column or ("summary" if is_tldr else None),
    )


def _unique(pairs: Iterable[SummaryPair]) -> list[SummaryPair]:
    first: dict[str, SummaryPair] = {}
    for pair in pairs:
        first.setdefault(pair.document, pair)
    return list(first.values())
