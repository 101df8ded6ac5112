"""What libraries write to stderr is kept in a file, and given back to the screen in the end."""

import signal
import subprocess
import sys

WRITES = """
import os, pathlib, sys
from data_pipeline.library_log import LibraryLog
def noise(text): os.write(2, text.encode())
with LibraryLog() as log:
    noise("before\\n")
    log.hold()
    noise("early\\n")
    print("python", file=sys.stderr)
    {middle}
    noise("late\\n")
    log.say("ours")
noise("after\\n")
"""


def run(tmp_path, middle, code=0, **environment):
    ran = subprocess.run(
        [sys.executable, "-c", WRITES.format(middle=middle)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)} | environment,
    )
    assert ran.returncode == code, ran.stderr
    return ran


def test_what_was_held_and_what_comes_is_added_to_the_file(tmp_path):
    path = tmp_path / "libraries.log"
    path.write_text("an earlier process\n")
    ran = run(tmp_path, f"log.keep(pathlib.Path({str(path)!r}))")
    assert ran.stderr == "before\nours\n"
    lines = path.read_text().splitlines()
    assert lines[0] == "an earlier process"
    assert lines[1].startswith("--- process ")
    assert lines[2:] == ["early", "python", "late", "after"]


def test_what_was_held_before_an_orderly_end_is_forgotten(tmp_path):
    assert run(tmp_path, "pass").stderr == "before\nours\n"


def test_what_was_held_before_an_error_is_seen_with_it(tmp_path):
    said = run(tmp_path, "raise RuntimeError('ours')", code=1).stderr
    assert said.startswith("before\nearly\npython\nTraceback")
    assert said.endswith("RuntimeError: ours\n")


def test_when_c_plus_plus_ends_the_process_the_screen_shows_where_and_the_file_why(tmp_path):
    said = run(tmp_path, "os.abort()", code=-signal.SIGABRT, TMPDIR=str(tmp_path)).stderr
    assert "Fatal Python error: Aborted" in said
    (left,) = tmp_path.glob("bert_jax-libraries-*.log")
    assert left.read_text() == "early\npython\n"


def test_an_error_is_seen_on_the_screen(tmp_path):
    path = tmp_path / "libraries.log"
    middle = f"log.keep(pathlib.Path({str(path)!r})); raise RuntimeError('ours')"
    ran = run(tmp_path, middle, code=1)
    assert "Traceback" in ran.stderr and "RuntimeError: ours" in ran.stderr
    assert "early" in path.read_text()


def test_without_holding_nothing_is_turned_aside(tmp_path):
    said = WRITES.replace("log.hold()", f"log.keep(pathlib.Path({str(tmp_path / 'no')!r}))")
    ran = subprocess.run(
        [sys.executable, "-c", said.format(middle="pass")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)},
    )
    assert ran.stderr == "before\nearly\npython\nlate\nours\nafter\n"
    assert not (tmp_path / "no").exists()


def test_a_line_is_headed_where_several_share_a_screen(tmp_path):
    assert run(tmp_path, "log.heading = 'process 3: '").stderr.endswith("\nprocess 3: ours\n")
