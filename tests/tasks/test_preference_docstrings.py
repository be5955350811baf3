"""Documents and human summaries from documentation strings: what is taken, how it is cleaned, which properties hold."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tbactl_preference import docstring_cache
from tbactl_preference.docstring_cache import cached_docstring_pairs
from tbactl_preference.docstring_text import (
    MAX_DOCUMENT_CHARACTERS,
    MIN_DOCUMENT_WORDS,
    clean_document,
    clean_markup,
    holds_summary,
    is_summary,
    is_supported,
    split_docstring,
    words,
)
from tbactl_preference.docstrings import PACKAGES, _pairs_of_file, _Seen
from tbactl_preference.pairs import SummaryPair

BODY = (
    "The values are sorted along the given axis by a stable algorithm, which keeps the order of equal ones. "
    "Values that are not numbers go to the end, whatever the algorithm, and are never compared with each other."
)


@pytest.fixture(scope="module")
def pairs():
    return {split: cached_docstring_pairs(split) for split in ("train", "test")}


def package(pair):
    return pair.origin.partition(":")[0].partition(".")[0]


def test_pairs_are_thousands_and_mostly_for_training(pairs):
    assert len(pairs["train"]) > 2000
    assert len(pairs["test"]) > 500


def test_pairs_test_packages_are_unseen_in_training(pairs):
    train, test = ({package(pair) for pair in pairs[split]} for split in ("train", "test"))
    assert not train & test
    assert train <= {name.partition("/")[0] for name in PACKAGES["train"]}
    assert test == set(PACKAGES["test"])


def test_pairs_document_never_holds_its_summary(pairs):
    assert not any(holds_summary(pair.document, summary=pair.summary) for split in pairs.values() for pair in split)


def test_pairs_are_unique_over_both_splits(pairs):
    everything = [pair for split in pairs.values() for pair in split]
    assert len({pair.document for pair in everything}) == len(everything)
    assert len({" ".join(words(pair.summary)) for pair in everything}) == len(everything)


def test_pairs_are_of_the_promised_lengths_and_plain(pairs):
    for split in pairs.values():
        for pair in split:
            assert 4 <= len(pair.summary.split()) <= 25
            assert pair.summary.endswith(".")
            title, _, body = pair.document.partition("\n")
            assert len(words(body)) >= MIN_DOCUMENT_WORDS
            assert len(body) <= MAX_DOCUMENT_CHARACTERS
            assert title.startswith(f"{package(pair)}: ")
            assert not any(mark in pair.document for mark in (">>>", "::", "%(", "<|", "``", ":func:"))


def test_pairs_first_test_documents_mix_packages(pairs):
    assert {package(pair) for pair in pairs["test"][:20]} == set(PACKAGES["test"])


def test_pairs_are_the_same_in_another_process_which_imports_nothing_heavy(pairs):
    code = (
        "import sys, hashlib; from tbactl_preference.task import PreferenceTask; task = PreferenceTask()\n"
        "text = repr([task.pairs(split) for split in ('train', 'test')])\n"
        "heavy = {'torch', 'transformers', 'pandas', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "print(hashlib.sha256(text.encode()).hexdigest(), sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240)
    import hashlib

    text = repr([pairs["train"], pairs["test"]])
    assert done.stdout.split() == [hashlib.sha256(text.encode()).hexdigest(), "[]"]


@pytest.mark.slow
def test_pairs_read_anew_are_those_of_the_cache(pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cached_docstring_pairs("test") == pairs["test"]
    assert cached_docstring_pairs("train") == pairs["train"]


def test_cache_damaged_file_is_made_anew_and_an_unwritable_folder_is_survived(tmp_path, monkeypatch, caplog):
    pair = SummaryPair(document="a", summary="b", origin="c")
    monkeypatch.setattr(docstring_cache, "docstring_pairs", lambda: {"train": [pair], "test": []})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cached_docstring_pairs("train") == [pair]
    (file,) = tmp_path.rglob("*-train.jsonl")
    for damage in ("{", '{"document": "a"}\n'):
        file.write_text(damage)
        assert cached_docstring_pairs("train") == [pair]
        assert "made anew" in caplog.text
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_docstring_pairs("train") == [pair]
    assert "cannot be written" in caplog.text


def test_split_docstring_takes_the_first_paragraph_as_summary():
    assert split_docstring(f"Sort an array\n    along one axis.\n\n    {BODY}\n") == (
        "Sort an array along one axis.",
        BODY,
    )


def test_split_docstring_leaves_a_signature_away():
    assert split_docstring(f"sort(a, axis=-1)\n\nSort an array along one axis.\n\n{BODY}")[0].startswith("Sort an")


@pytest.mark.parametrize(
    "text",
    [
        "Sort an array along one axis.",  # no document
        f"{BODY}",
        f"Sort an array along one axis. Slowly.\n\n{BODY}",
        f"Deprecated way to sort an array.\n\n{BODY}",
        f"Sort.\n\n{BODY}",
        f"Sort an array along one axis\n\n{BODY}",
        f"Sort `a` by f(x) = x**2.\n\n{BODY}",
        f"Sort an array along one axis.\n\n{BODY} %(more_parameters)s",
        f"Sort an array along one axis.\n\n{BODY} This one is deprecated.",
        "Sort an array along one axis.\n\nToo short to sum up.",
    ],
)
def test_split_docstring_refuses_what_is_no_summary_or_no_document(text):
    assert split_docstring(text) is None


@pytest.mark.parametrize(
    ("markup", "plain"),
    [
        (":func:`~numpy.sort` of :class:`Array <a.Array>`", "numpy.sort of Array"),
        ("``a`` and `b` and `text <https://x.org>`_", "a and b and text"),
        ("the algorithm described in [1]_.", "the algorithm described."),
        (":param items: what to sort :type items: list(str)", "items: what to sort"),
        (":return: the sorted list :rtype: list", "Returns: the sorted list"),
        ("*strongly* **advised** 2 * 3 * 4", "strongly advised 2 * 3 * 4"),
    ],
)
def test_clean_markup(markup, plain):
    assert clean_markup(markup) == plain


def test_clean_document_drops_examples_references_and_directives_and_keeps_parameters():
    text = """
First text.

.. versionadded:: 1.0
   Some day.

.. note:: Mind the gap.

Parameters
----------
a : int
    A number.
b : int
    Another.

See Also
--------
other : Does the same.

Notes
-----
Last text.

Examples
--------
>>> f(1)
1
"""
    assert clean_document(text).splitlines() == [
        "First text.",
        "Mind the gap.",
        "Parameters: a : int A number.",
        "b : int Another.",
        "Last text.",
    ]


def test_clean_document_is_cut_at_the_end_of_a_sentence():
    text = clean_document("A sentence of some length stands here. " * 40)
    assert MAX_DOCUMENT_CHARACTERS - 40 < len(text) <= MAX_DOCUMENT_CHARACTERS
    assert text.endswith(".")


def test_is_supported_asks_for_the_content_words():
    assert is_supported("Sort an array.", document="numpy: sort(a) of arrays")
    assert not is_supported("Compute the gamma function.", document="numpy: sort(a) of arrays")


def test_is_summary_measures_words():
    assert is_summary("Sort all of it.")
    assert not is_summary("Sort " + "very " * 25 + "well.")


def test_seen_refuses_equal_summaries_and_near_copies():
    seen = _Seen()
    first = SummaryPair(document=BODY, summary="Sort an array.", origin="")
    assert seen.is_new(first)
    assert not seen.is_new(SummaryPair(document="Something else.", summary="sort an array", origin=""))
    assert not seen.is_new(SummaryPair(document=BODY + " More.", summary="Another summary.", origin=""))
    assert seen.is_new(SummaryPair(document="Entirely different words are written here.", summary="New.", origin=""))


def test_pairs_of_file_takes_public_definitions_and_newdoc_calls(tmp_path):
    def documented(name):
        return f'"""Sort the {name} by a stable algorithm.\n\n    {BODY}\n    """'

    source = f"""
def public(values, axis, *, kind):
    {documented("values")}

def _private(values):
    {documented("privates")}

class Thing:
    {documented("things")}

    def method(self, key):
        {documented("methods")}

    def _hidden(self):
        {documented("hiddens")}

add_newdoc("numpy", "ndarray", ("sort", {documented("newdocs")}))
add_newdoc("numpy", "arange", {documented("ranges")})
"""
    file = tmp_path / "module.py"
    file.write_text(source)
    found = {pair.origin: pair.document.splitlines()[0] for pair in _pairs_of_file(file, module="pack.module")}
    assert found == {
        "pack.module:public(values, axis, kind)": "pack: public(values, axis, kind)",
        "pack.module:class Thing": "pack: class Thing",
        "pack.module:Thing.method(key)": "pack: Thing.method(key)",
        "pack.module:ndarray.sort": "pack: ndarray.sort",
        "pack.module:arange": "pack: arange",
    }


def test_pairs_of_file_survives_what_does_not_parse(tmp_path):
    file = tmp_path / "template.py"
    file.write_text('"""Template."""\ndef {{name}}(): pass\n')
    assert list(_pairs_of_file(file, module="pack")) == []
