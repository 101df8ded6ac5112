"""Check the marks of cases: `make faults` would skip a case without one silently."""

import pathlib

import pytest

from tests.faults.battery import ROWS

HERE = pathlib.Path(__file__).resolve().parent
OF_THE_HARNESS = "test_harness.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise if a case names no row of the battery, or not how it causes the fault."""
    for item in items:
        mark = item.get_closest_marker("fault")
        if HERE in item.path.parents and item.path.name != OF_THE_HARNESS and mark is None:
            raise pytest.UsageError(f"{item.nodeid} has no mark fault(row, words)")
        if mark is not None and not (len(mark.args) == 2 and mark.args[0] in ROWS):
            raise pytest.UsageError(f"{item.nodeid}: fault{mark.args}; give a row and words")
