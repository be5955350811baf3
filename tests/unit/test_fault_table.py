"""docs/faults.md is true: every fault has a test or a reason, and the document says what the markers say."""

from __future__ import annotations

import pytest

from tests.support.fault_table import DOCUMENT, Fault, MarkedTest, marked_tests, read_faults, render

FAULTS = read_faults()
TESTS = marked_tests()


def test_every_fault_has_a_test_or_a_reason_and_not_both():
    reasons = {name for name, fault in FAULTS.items() if fault.not_applicable}
    assert [name for name in FAULTS if (name in TESTS) == (name in reasons)] == []


def test_no_marker_names_an_unknown_fault():
    assert {name: tests for name, tests in TESTS.items() if name not in FAULTS} == {}


def test_document_is_up_to_date():
    message = "run `python -m tests.support.fault_table`"
    assert DOCUMENT.read_text(encoding="utf-8") == render(FAULTS, TESTS), message


def test_markers_are_found_without_importing(tmp_path):
    source = """
import no_such_module, pytest
@pytest.mark.slow
@pytest.mark.fault("I-01", "R-02")
def test_one(): ...
def test_other(): ...
"""
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_x.py").write_text(source)
    one = MarkedTest("tests/unit/test_x.py", "test_one")
    assert marked_tests(tmp_path / "tests") == {"I-01": [one], "R-02": [one]}


def test_marker_that_no_test_carries_is_refused(tmp_path):
    (tmp_path / "test_x.py").write_text("import pytest\n@pytest.mark.fault('I-01')\ndef helper(): ...\n")
    with pytest.raises(ValueError, match="1 fault markers are not decorators of a test"):
        marked_tests(tmp_path)


def test_row_has_the_tests_or_the_reason():
    faults = {"I-01": Fault("a"), "I-02": Fault("b", not_applicable="never")}
    text = render(faults, {"I-01": [MarkedTest("tests/unit/test_x.py", "test_one")]})
    assert "| I-01 | a | [one](../tests/unit/test_x.py) |\n| I-02 | b | *cannot apply*: never |" in text
