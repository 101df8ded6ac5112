"""How an entry ends: its exit code, and the one line that says why."""

import errno
import os
import subprocess
import sys

import pytest
from absl import flags

from bert_jax import command_line


@pytest.fixture
def run(monkeypatch, capfd):
    """Run an entry whose prepare and work are given; its exit code and what stood on stderr."""
    monkeypatch.setattr("sys.argv", ["entry", "one", "two"])
    monkeypatch.setattr(command_line.flags, "FLAGS", flags.FlagValues())

    def end(prepare) -> tuple[int, str]:
        with pytest.raises(SystemExit) as exited:
            command_line.run(prepare, "usage", "nothing was lost")
        return exited.value.code, capfd.readouterr().err

    return end


def raising(error):
    def work():
        raise error

    return work


def test_the_works_code_is_the_exit_code(run):
    assert run(lambda log, arguments: lambda: len(arguments)) == (2, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("steps is 0; give 1 or more"), "steps is 0; give 1 or more"),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), "runs/x: Permission denied"),
    ],
)
def test_what_cannot_be_prepared_is_refused(run, error, said):
    assert run(lambda log, arguments: raising(error)()) == (2, f"error: {said}\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FloatingPointError("loss is nan"), 3, "loss is nan"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "no space is left on the disk; make room, or give a folder on another one; "
            "nothing was lost",
        ),
    ],
)
def test_work_that_fails_says_so_in_one_line(run, error, code, said):
    assert run(lambda log, arguments: raising(error)) == (code, f"error: {said}\n")


@pytest.mark.parametrize("during", ["prepare", "work"])
def test_ctrl_c_is_no_traceback(run, during):
    stopped = raising(KeyboardInterrupt())
    prepare = {"prepare": lambda log, _: stopped(), "work": lambda log, _: stopped}[during]
    code, said = run(prepare)
    assert code == 130
    assert said == "interrupted; nothing was lost\n"


def test_a_reader_that_has_gone_is_no_error():
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = ["-m", "bert_jax.train", "--config=configs/base.py", "--print_config"]
    ran = subprocess.run(
        [sys.executable, *command], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_an_error_of_ours_is_shown_whole(monkeypatch):
    monkeypatch.setattr("sys.argv", ["entry"])
    monkeypatch.setattr(command_line.flags, "FLAGS", flags.FlagValues())
    with pytest.raises(ValueError, match="a bug"):
        command_line.run(lambda log, arguments: raising(ValueError("a bug")), "usage", "")


def test_what_another_process_did_not_answer_may_be_started_again(run):
    def prepare(log, arguments):
        raise TimeoutError("process 1 did not answer")

    assert run(prepare) == (1, "error: process 1 did not answer\n")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("no disk"), (1, "error: no disk; nothing was lost")),
        (RuntimeError("a bug"), (1, "RuntimeError: a bug")),
    ],
)
def test_who_has_to_leave_otherwise_is_told_why(monkeypatch, capfd, error, told):
    monkeypatch.setattr("sys.argv", ["entry"])
    monkeypatch.setattr(command_line.flags, "FLAGS", flags.FlagValues())

    def leave(code, message):
        raise SystemExit(f"left with {code}: {message}")

    with pytest.raises(SystemExit, match=f"^left with {told[0]}: {told[1]}$"):
        command_line.run(lambda log, arguments: raising(error), "usage", "nothing was lost", leave)
