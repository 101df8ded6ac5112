"""Apply each planted edit in a copy of the tree; the tests named for it must fail by an assertion.

python -m tests.mutants [WORDS ...] runs the edits whose file or text has one of the words, all by
default. Two run at a time, each in a copy of its own under build/mutants/. The exit code is 1 if an
edit survived.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.mutants import server
from tests.mutants.mutant import Mutant, find_problems
from tests.mutants.table import MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutants"
WORKERS = 2
# A test may take this much longer with an edit than without before it counts as stuck.
SPARE_SECS, SPARE_TIMES = 120.0, 5.0


class Copy:
    """Hold a copy of the tree, in which one file is edited at a time, and a server of tests."""

    def __init__(self, home: pathlib.Path) -> None:
        """Copy what git knows of, with uncommitted changes, beside a link to the shared data."""
        shutil.rmtree(home, ignore_errors=True)
        self.tree, self._report = home / "tree", home / "report.json"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        if (ROOT.parent / "shared").is_dir():
            (home / "shared").symlink_to((ROOT.parent / "shared").resolve())
        (home / "tmp").mkdir()
        settings = {"PYTHONPATH": str(self.tree), "TMPDIR": str(home / "tmp")}
        settings |= {"JAX_PLATFORMS": "cpu", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", server.__name__],
            cwd=self.tree,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run_tests(self, tests: Sequence[str], module: str, limit_secs: float) -> dict[str, Any]:
        """Run tests in the copy; return what the server wrote, or a problem."""
        self._report.unlink(missing_ok=True)
        request = {"module": module, "tests": list(tests), "report": str(self._report)}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        pid = int(self._server.stdout.readline())
        stuck = threading.Timer(limit_secs, os.killpg, (pid, signal.SIGKILL))
        stuck.start()
        code = int(self._server.stdout.readline())
        stuck.cancel()
        if not self._report.exists():
            log = pathlib.Path(f"{self._report}.log").read_text(errors="replace")[-2000:]
            return {
                "problems": [f"ended with {code}, limit {limit_secs:.0f} s: {log}"],
                "tests": {},
            }
        return json.loads(self._report.read_text())

    def try_edit(self, mutant: Mutant, limit_secs: float) -> str:
        """Run the tests of an edit; return "" if each failed by an assertion, else why."""
        path = self.tree / mutant.file
        text = path.read_text(encoding="utf-8")
        try:
            _write(path, mutant.apply(self.tree))
            found = self.run_tests(mutant.tests, mutant.module, limit_secs)
        finally:
            _write(path, text)
        return "; ".join(found["problems"]) or judge(mutant.tests, found["tests"])

    def close(self) -> None:
        """End the server."""
        self._server.stdin.close()
        self._server.wait()


def _write(path: pathlib.Path, text: str) -> None:
    """Write a module and forget its bytecode, which is known by its size and second alone."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def judge(tests: Sequence[str], endings: dict[str, dict[str, Any]]) -> str:
    """Say which of the tests did not fail by an assertion; "" if all did."""
    for test in tests:
        cases = [ending for case, ending in endings.items() if _is_case(case, test)]
        broken = [case["error"] for case in cases if case["how"] == server.BROKE]
        if broken:
            return f"{test} fails, but not by an assertion: {broken[0]}"
        if not any(case["how"] == server.ASSERTED for case in cases):
            return f"{test} passes"
    return ""


def _is_case(case: str, test: str) -> bool:
    return case == test or case.startswith((f"{test}[", f"{test}::"))


def _run_unedited(copies: Sequence[Copy], mutants: Sequence[Mutant]) -> dict[str, float]:
    """Run every named test once without an edit; return its seconds, or end if one fails."""
    by_file: dict[str, set[str]] = collections.defaultdict(set)
    for test in {test for mutant in mutants for test in mutant.tests}:
        by_file[test.partition("::")[0]].add(test)
    shares: list[list[str]] = [[] for _ in copies]
    for file in sorted(by_file, key=lambda file: -len(by_file[file])):
        min(shares, key=len).extend(sorted(by_file[file]))
    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        reports = list(
            pool.map(lambda copy, share: copy.run_tests(share, "", 3600.0), copies, shares)
        )
    secs: dict[str, float] = {}
    problems = [problem for report in reports for problem in report["problems"]]
    for share, report in zip(shares, reports, strict=True):
        for test in share:
            cases = {case: e for case, e in report["tests"].items() if _is_case(case, test)}
            problems += [
                f"{case} {ending['how']} {ending['error']}"
                for case, ending in cases.items()
                if ending["how"] != server.PASSED
            ]
            problems += [] if cases else [f"{test} was not run"]
            secs[test] = sum(ending["secs"] for ending in cases.values())
    if problems:
        sys.exit("\n".join(["without an edit:", *problems]))
    return secs


def main(words: Sequence[str]) -> int:
    """Run the edits that match; print a line for each, and the survivors."""
    chosen = [m for m in MUTANTS if not words or any(w in f"{m.file} {m.old}" for w in words)]
    problems = find_problems(ROOT, chosen)
    if problems or not chosen:
        print("\n".join(problems) or f"no edit matches {' '.join(words)}")
        return 1
    began = time.monotonic()
    copies = [Copy(FOLDER / f"worker-{number}") for number in range(min(WORKERS, len(chosen)))]
    secs = _run_unedited(copies, chosen)
    print(f"{len(secs)} tests pass without an edit ({time.monotonic() - began:.0f} s)", flush=True)
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def attempt(mutant: Mutant) -> str:
        copy, limit_secs = free.get(), sum(secs[test] for test in mutant.tests)
        start = time.monotonic()
        try:
            survives = copy.try_edit(mutant, SPARE_SECS + SPARE_TIMES * limit_secs)
        finally:
            free.put(copy)
        how = "SURVIVED" if survives else "caught"
        print(f"{time.monotonic() - start:4.0f} s  {how}  {mutant.name}", flush=True)
        return survives

    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        answers = zip(chosen, pool.map(attempt, chosen), strict=True)
        survivors = {mutant.name: why for mutant, why in answers if why}
    for copy in copies:
        copy.close()
    for name, why in survivors.items():
        print(f"SURVIVED  {name}\n          {why}")
    minutes = (time.monotonic() - began) / 60
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} edits caught in {minutes:.1f} minutes")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
