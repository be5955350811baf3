"""All cases."""

from __future__ import annotations

from tests.bad_inputs import data_files, hub_names, machine, overrides, recipes, runs, tasks

ALL_CASES = [
    *recipes.CASES,
    *overrides.CASES,
    *runs.CASES,
    *data_files.CASES,
    *hub_names.CASES,
    *tasks.CASES,
    *machine.CASES,
]
assert len({case.name for case in ALL_CASES}) == len(ALL_CASES)
