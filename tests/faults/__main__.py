"""Run all cases of the battery, the long ones too: python -m tests.faults [--fresh] [ARGUMENT ...]

A case that passed at this commit, on this Python, is not run again unless --fresh; so a run that is
stopped goes on. Arguments are pytest's, such as -k save. Results go to build/faults/.
"""

import sys

import pytest

from tests.faults import results
from tests.faults.runs import ROOT

FOLDER = ROOT / "build" / "faults"


def main(arguments: list[str]) -> int:
    """Run the cases that have not passed yet, write the table, and return pytest's exit code."""
    is_fresh = "--fresh" in arguments
    rest = [argument for argument in arguments if argument != "--fresh"]
    path = FOLDER / "results.jsonl"
    recorder = results.Recorder(path, results.commit_of(ROOT), is_fresh)
    code = pytest.main(["-m", "fault", *rest, str(ROOT / "tests")], plugins=[recorder])
    found = results.read(path)
    (FOLDER / "faults.md").write_text(results.markdown(found))
    print(f"{path} and faults.md beside it")
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and recorder.done:
        print("all cases have passed at this commit; make faults FRESH=1 runs them again")
        return 0
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
