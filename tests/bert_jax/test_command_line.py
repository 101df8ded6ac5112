"""How an entry ends: its exit code, and the one line that says why."""

import errno
import os
import subprocess
import sys

import fsspec
import pytest
from absl import flags

from bert_jax import command_line, storage_errors
from data_pipeline import store_cache


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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError("process 1 did not answer"), "process 1 did not answer"),
        (ConnectionError("the bucket does not answer"), "the bucket does not answer"),
        (OSError(errno.ESTALE, "Stale file handle", "/nfs/s"), "/nfs/s: Stale file handle"),
        (OSError(errno.EIO, "Input/output error", "/nfs/s"), "/nfs/s: Input/output error"),
        (
            storage_errors.explained(OSError(errno.ESTALE, "Stale file handle"), "/nfs/s"),
            "/nfs/s: writing failed, the mounted folder is gone (stale file handle); "
            "mount it again",
        ),
    ],
)
def test_what_did_not_answer_before_the_run_may_be_started_again(run, error, said):
    assert run(lambda log, arguments: raising(error)()) == (1, f"error: {said}\n")


def test_a_store_whose_bucket_is_late_may_be_started_again(run, monkeypatch, tmp_path):
    memory = fsspec.filesystem("memory")

    def late(*_, **__):
        error = Exception("Service Unavailable, 503")  # as gcsfs's, which has no other base
        error.code = 503
        raise error

    for call in ("info", "cat_file"):
        monkeypatch.setattr(type(memory), call, late)
    code, said = run(
        lambda log, arguments: store_cache.cached_store("memory://stores/mine", str(tmp_path))
    )
    assert code == 1
    assert "cannot be read now: Exception: Service Unavailable, 503; look at" in said


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


@pytest.mark.parametrize(
    ("reason", "code", "said"),
    [
        ("UNAVAILABLE: the TPU is in use by process 7", 1, "cannot start that device now"),
        ("NOT_FOUND: no device", 2, "finds no such device here (NOT_FOUND: no device)"),
        ("Backend 'x' is not in the list of known backends: ['cpu']", 2, "finds no such device"),
    ],
)
def test_a_device_that_is_busy_may_come_later_and_one_that_is_absent_not(run, reason, code, said):
    words = f"Unable to initialize backend 'tpu': {reason} (set JAX_PLATFORMS='' to choose)"
    got, line = run(lambda log, arguments: raising(RuntimeError(words)))
    assert got == code and said in line and line.count("\n") == 1


def test_numbers_of_flags_are_finite(run, monkeypatch):
    flags.DEFINE_float("secs", 1.0, "seconds", flag_values=command_line.flags.FLAGS)
    monkeypatch.setattr("sys.argv", ["entry", "--secs=nan"])
    assert run(lambda log, arguments: None) == (
        2,
        "error: --secs is nan; it must be a finite number\n",
    )


@pytest.mark.parametrize("name", ["checkpoint", "from"])
def test_a_workdir_for_a_command_that_reads_models_is_led_to_its_flag(monkeypatch, capfd, name):
    values = flags.FlagValues()
    flags.DEFINE_string(name, "", "a model", flag_values=values)
    monkeypatch.setattr(command_line.flags, "FLAGS", values)
    for arguments in (["--workdir=runs/x"], ["--workdir", "runs/x"]):
        monkeypatch.setattr("sys.argv", ["entry", *arguments])
        with pytest.raises(SystemExit) as exited:
            command_line.run(lambda log, rest: lambda: 0, "usage", "nothing was lost")
        said = capfd.readouterr().err
        assert exited.value.code == 2 and "--workdir: " in said and f"--{name}=" in said
        assert ("runs/x" in said) == ("=" in arguments[0])


def test_help_shows_a_config_of_the_command(forked):
    assert "configs/finetune/" in forked("bert_jax.finetune", "--help").stdout
    missing = forked("bert_jax.finetune", "--workdir=x", code=2).stderr
    assert "configs/finetune/ner.py" in missing and "configs/base.py" not in missing
