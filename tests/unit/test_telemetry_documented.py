from __future__ import annotations

import pytest

from tbactl.trainer.board import FROM_METRICS
from tests.support.documented_metrics import DOCUMENT, documented_metrics
from tests.support.scripted_run import ScriptedRun


@pytest.mark.fault("I-71")
def test_every_metric_of_a_run_is_documented(tmp_path):
    run = ScriptedRun(tmp_path)
    run.run()
    emitted = {name for line in run.metrics() for name in line["metrics"]}
    assert len(emitted) > 30
    assert emitted <= documented_metrics()


def test_every_metric_on_the_control_page_is_documented():
    assert set(FROM_METRICS.values()) <= documented_metrics()


def test_every_row_of_the_tables_is_well_formed():
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == len(documented_metrics())
