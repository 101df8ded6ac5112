"""Record the results of `make faults`, a line per case, and make a table of them."""

import collections
import datetime
import json
import pathlib
import platform
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests.faults.battery import ROWS

Result = dict[str, Any]

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
HEADING = """# Faults
What breaks a run, how the tests cause it, and what held. Made by `make faults`, which writes it to
`build/faults/faults.md`; a case is a test with the mark `fault` (`tests/faults/battery.py`).

"""
COLUMNS = ("row", "fault", "what must hold", "caused by", "result", "secs", "commit", "date")


def commit_of(root: pathlib.Path) -> str:
    """Return the commit that is checked out, marked if files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=7", "HEAD") or "no commit"
    return f"{head} and changes" if git("status", "--porcelain") else head


def read(path: pathlib.Path) -> list[Result]:
    """Read the newest result of each case; skip a truncated last line."""
    newest: dict[str, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        newest.pop(result["case"], None)
        newest[result["case"]] = result
    return list(newest.values())


def markdown(results: Sequence[Result]) -> str:
    """Make the table: a line per case, and a line for each row without a case."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for number, (fault, must_hold) in ROWS.items():
        row = (str(number), fault, must_hold)
        cases = [
            (case["words"], case["result"], f"{case['secs']:.1f}", case["commit"], case["date"])
            for case in results
            if case["row"] == number
        ]
        for cells in cases or [("no case yet", "", "", "", "")]:
            lines.append(f"| {' | '.join((*row, *cells))} |")
            row = ("", "", "")
    return HEADING + "\n".join(lines) + "\n"


class Recorder:
    """Skip the cases that have passed, and append a line as each other case ends."""

    def __init__(self, path: pathlib.Path, commit: str, is_fresh: bool) -> None:
        self.path, self.commit, self.python = path, commit, platform.python_version()
        # With uncommitted changes, no earlier pass counts.
        is_known = not (is_fresh or commit.endswith("changes"))
        self.done = {
            result["case"]
            for result in read(path)
            if (result["result"], result["commit"], result["python"])
            == (PASSED, commit, self.python)
            and is_known
        }
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
        if report.when != "teardown" or case not in self._marks:
            return
        row, words = self._marks[case]
        line = {
            **{"case": case, "row": row, "words": words, "result": self._worst.get(case, PASSED)},
            **{"secs": round(self._secs[case], 1), "commit": self.commit, "python": self.python},
            "date": datetime.date.today().isoformat(),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
