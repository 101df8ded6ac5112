"""The harness of the battery: what it runs again, what it writes, that nothing is left running."""

import os
import signal
import subprocess
import sys

import pytest

from tests.faults import results
from tests.faults.battery import ROWS
from tests.faults.runs import Training

pytestmark = pytest.mark.slow

CASES = """
import os, pytest

@pytest.mark.fault(5, "by hand")
def test_good():
    assert os.environ["FAULT_FOUND"]

@pytest.mark.fault(1, "by chance")
def test_bad():
    assert not os.environ["FAULT_FOUND"]

def test_of_no_row():
    pass
"""


@pytest.fixture
def battery(tmp_path, monkeypatch):
    """A function that runs two planted cases and gives the results by case."""
    monkeypatch.setenv("FAULT_FOUND", "1")
    # Those that are installed take longer to find and import than the planted cases to run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    cases = tmp_path / "test_planted.py"
    cases.write_text(CASES)

    def run(commit="c0ffee0", is_fresh=False):
        recorder = results.Recorder(tmp_path / "out" / "results.jsonl", commit, is_fresh)
        flags = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", os.devnull]
        pytest.main([*flags, f"--rootdir={tmp_path}", str(cases)], plugins=[recorder])
        found = results.read(recorder.path)
        written = len(recorder.path.read_text().splitlines())
        return {one["case"].split("::")[1]: one for one in found}, written

    return run


@pytest.mark.long  # of make faults itself
def test_what_has_passed_at_this_commit_is_not_run_again(battery):
    found, written = battery()
    assert {name: one["result"] for name, one in found.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
    }
    assert (found["test_good"]["row"], found["test_good"]["words"]) == (5, "by hand")
    assert [written, battery()[1], battery()[1]] == [2, 3, 4]  # the bad one alone
    assert battery(is_fresh=True)[1] == 6
    assert battery(commit="c0ffee1")[1] == 8
    assert [battery(commit="c0ffee1 and changes")[1] for _ in range(2)] == [10, 12]


def test_a_half_line_is_left_out_and_the_newest_result_counts(battery, tmp_path):
    battery()
    path = tmp_path / "out" / "results.jsonl"
    path.write_text(
        path.read_text() + path.read_text().replace("c0ffee0", "c0ffee1") + '{"case": "t'
    )
    assert [one["commit"] for one in results.read(path)] == ["c0ffee1", "c0ffee1"]


def test_the_page_has_every_row_of_the_battery_and_its_cases(battery, tmp_path):
    battery()
    page = results.markdown(results.read(tmp_path / "out" / "results.jsonl"))
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[1].strip() for row in rows] == [str(number) for number in ROWS]
    assert "| by hand | passed |" in rows[4] and "| by chance | failed |" in rows[0]
    assert page.count("no case yet") == len(ROWS) - 2


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    code = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    processes = [
        subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        for text in (code, code.replace("SIG_IGN", "SIG_DFL"))
    ]
    for process in processes:
        process.stdout.readline()
    Training(tmp_path, processes, []).end(grace_secs=0.2)
    assert [process.returncode for process in processes] == [-signal.SIGKILL, -signal.SIGTERM]
    for process in processes:
        process.stdout.close()
