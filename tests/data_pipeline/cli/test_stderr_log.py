"""What libraries write to stderr is kept in a file, and given back to the screen in the end."""

import re
import signal
import subprocess
import sys

import pytest

WRITES = """
import os, pathlib, sys
from data_pipeline.cli.stderr_log import LibraryLog
def noise(text): os.write(2, text.encode())
with LibraryLog() as log:
    noise("before\\n")
    {hold}
    noise("early\\n")
    print("python", file=sys.stderr)
    {middle}
    noise("late\\n")
    log.say("ours")
noise("after\\n")
"""


def run(tmp_path, middle, code=0, hold="log.hold()"):
    """Run the program above, its temporary files in the folder; return its stderr."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITES.format(hold=hold, middle=middle)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    assert ran.returncode == code, ran.stderr
    return ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("middle", "code", "stderr"),
    [
        ("pass", 0, "before\nours\n"),
        ("log.heading = 'process 3: '", 0, "before\nprocess 3: ours\n"),
        ("raise RuntimeError('ours')", 1, "before\nearly\npython\nTraceback.*RuntimeError: ours\n"),
    ],
)
def test_what_was_held_is_shown_after_an_error_alone(tmp_path, middle, code, stderr):
    assert re.fullmatch(stderr, run(tmp_path, middle, code), re.DOTALL)


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_held_and_what_comes_is_added_to_the_file(tmp_path, fails):
    path = tmp_path / "libraries.log"
    path.write_text("an earlier process\n")
    middle = f"log.keep(pathlib.Path({str(path)!r}))" + "; raise RuntimeError('ours')" * fails
    stderr = run(tmp_path, middle, code=int(fails))
    lines = path.read_text().splitlines()
    assert lines[0] == "an earlier process"
    assert lines[1].startswith("--- process ")
    assert lines[2:] == ["early", "python", *([] if fails else ["late", "after"])]
    if fails:
        assert "Traceback" in stderr and "RuntimeError: ours" in stderr
    else:
        assert stderr == "before\nours\n"


def test_when_c_plus_plus_ends_the_process_the_screen_shows_the_place_and_the_file_why(tmp_path):
    stderr = run(tmp_path, "os.abort()", code=-signal.SIGABRT)
    assert "Fatal Python error: Aborted" in stderr
    (left,) = tmp_path.glob("bert_jax-libraries-*.log")
    assert left.read_text() == "early\npython\n"


def test_without_holding_nothing_is_turned_aside(tmp_path):
    no_file = f"log.keep(pathlib.Path({str(tmp_path / 'no')!r}))"
    stderr = run(tmp_path, "pass", hold=no_file)
    assert stderr == "before\nearly\npython\nlate\nours\nafter\n"
    assert not (tmp_path / "no").exists()
