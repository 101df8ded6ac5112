"""What `make faults` found: a line a case in one file, and the table made of it."""

import collections
import datetime
import json
import pathlib
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import rich.box
import rich.console
import rich.table
import rich.text

from tests.faults.battery import ROWS

Result = dict[str, Any]

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
HEADING = """# Faults
What breaks a run, how the tests cause it, and what held. Made by `make faults`, which writes it to
`build/faults/faults.md`; a case is a test with the mark `fault` (`tests/faults/battery.py`).

"""
COLUMNS = ("row", "fault", "what must hold", "caused by", "result", "secs", "commit", "date")


def commit_of(root: pathlib.Path) -> str:
    """The commit that is checked out, and whether files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=7", "HEAD") or "no commit"
    return f"{head} and changes" if git("status", "--porcelain") else head


def read(path: pathlib.Path) -> list[Result]:
    """The results so far, the newest of each case; a half line at the end is left out."""
    newest: dict[str, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        newest.pop(result["case"], None)
        newest[result["case"]] = result
    return list(newest.values())


def passed(results: Iterable[Result], commit: str, python: str) -> set[str]:
    """The cases that need not be run again: they passed with the same code on the same Python.

    Files that differ from the commit could be any, so nothing counts as passed with them.
    """
    return {
        result["case"]
        for result in results
        if (result["result"], result["commit"], result["python"]) == (PASSED, commit, python)
        and not commit.endswith("changes")
    }


def _rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The table's cells: a line a case, and one for a row without any."""
    cases = collections.defaultdict(list)
    for result in results:
        cases[result["row"]].append(result)
    cells = []
    for number, row in ROWS.items():
        shown = (str(number), row.fault, row.must_hold)
        for of in cases[number]:
            secs = f"{of['secs']:.1f}"
            cells.append((*shown, of["words"], of["result"], secs, of["commit"], of["date"]))
            shown = ("", "", "")
        if not cases[number]:
            cells.append((*shown, "no case yet", "", "", "", ""))
    return cells


def markdown(results: Sequence[Result]) -> str:
    """The table as a page of docs."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(cells)} |" for cells in _rows(results)]
    return HEADING + "\n".join(lines) + "\n"


def show(results: Sequence[Result]) -> None:
    """Print the table, each kind of fault above its cases."""
    table = rich.table.Table(box=rich.box.SIMPLE)
    for column in ("row", "fault, and how it was caused", "result", "secs", "commit", "date"):
        table.add_column(column, justify="right" if column in ("row", "secs") else "left")
    styles = {PASSED: "green", FAILED: "bold red", SKIPPED: "yellow"}
    for row, fault, _, words, result, secs, commit, date in _rows(results):
        if row:
            table.add_row(row, fault, style="bold")
        shown = rich.text.Text(result, styles.get(result, ""))
        table.add_row("", f"  {words}", shown, secs, commit, date)
    rich.console.Console().print(table)


class Recorder:
    """Leaves out the cases that have passed, and adds a line to the file as each other one ends."""

    def __init__(self, path: pathlib.Path, commit: str, is_fresh: bool) -> None:
        self.path, self.commit, self.python = path, commit, platform.python_version()
        self.done = set() if is_fresh else passed(read(path), commit, self.python)
        self._marks: dict[str, tuple[int, str]] = {}
        self._secs: collections.Counter[str] = collections.Counter()
        self._worst: dict[str, str] = {}
        path.parent.mkdir(parents=True, exist_ok=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        for item in items:
            mark = item.get_closest_marker("fault")
            if mark is not None:
                self._marks[item.nodeid] = tuple(mark.args)
        again = [item for item in items if item.nodeid in self.done]
        items[:] = [item for item in items if item.nodeid not in self.done]
        config.hook.pytest_deselected(items=again)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = report.nodeid
        self._secs[case] += report.duration
        if report.failed or self._worst.get(case) == FAILED:
            self._worst[case] = FAILED
        elif report.skipped:
            self._worst[case] = SKIPPED
        if report.when == "teardown" and case in self._marks:
            self._write(case, self._worst.get(case, PASSED))

    def _write(self, case: str, result: str) -> None:
        row, words = self._marks[case]
        line = {
            **{"case": case, "row": row, "words": words, "result": result},
            "secs": round(self._secs[case], 1),
            "commit": self.commit,
            "python": self.python,
            "date": datetime.date.fromtimestamp(time.time()).isoformat(),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
