"""How an entry ends: its exit code, and the one line that says why."""

import contextlib
import dataclasses
import errno
import os
import subprocess
import sys

import jax
import pytest

from bert_jax.config import Config, overrides
from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused, errors
from tests.faults.runs import ROOT


@dataclasses.dataclass(frozen=True)
class Flags:
    """The flags of a command."""

    place: str = flag("", "of it")


@pytest.fixture
def end(monkeypatch, capfd):
    """Run a command whose preparation and work are given: exit code and stderr."""
    monkeypatch.setattr("sys.argv", ["entry", "--place=here"])

    def end(prepare, work=lambda: 0, **leave) -> tuple[int, str]:
        def prepare_and_work(log, flags):
            with cli.preparing():
                prepare()
            assert flags == Flags("here")
            return work()

        command = Command("bert_jax.entry", "", Flags, "an example")
        code = cli.run(command, prepare_and_work, "nothing was lost", **leave)
        return code, capfd.readouterr().err

    return end


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Refused("steps is 0; give 1 or more"), 2, "error: steps is 0; give 1 or more"),
        (PermissionError(errno.EACCES, "denied", "runs/x"), 2, "error: runs/x: denied"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was lost"),
        # What did not answer may be started again.
        (TimeoutError("process 1 did not answer"), 1, "error: process 1 did not answer"),
        (ConnectionError("the bucket does not answer"), 1, "error: the bucket does not answer"),
        (OSError(errno.ESTALE, "Stale handle", "/nfs/s"), 1, "error: /nfs/s: Stale handle"),
        (OSError(errno.EIO, "Input/output error", "/s"), 1, "error: /s: Input/output error"),
        (errors.explain(OSError(errno.ESTALE, "Stale"), "/nfs/s"), 1, "error: /nfs/s: writing"),
    ],
)
def test_what_cannot_be_prepared_is_refused_in_one_line(end, error, code, line):
    got, said = end(raising(error))
    assert got == code and said.startswith(line) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (FloatingPointError("loss is nan"), 3, "error: loss is nan"),
        (Refused("x is 0"), 2, "error: x is 0"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error: no space is left on the"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was lost"),
    ],
)
def test_work_that_fails_says_so_in_one_line(end, error, code, line):
    got, said = end(lambda: None, raising(error))
    assert got == code and said.startswith(line) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "usual"),
    [
        ("JAX_ENABLE_X64", "1", "0"),
        ("JAX_ENABLE_X64", "", "0"),
        ("JAX_ENABLE_X64", "perhaps", "0"),
        ("JAX_DISABLE_JIT", "True", "0"),
        ("JAX_DEBUG_NANS", "on", "0"),
        ("JAX_NUMPY_RANK_PROMOTION", "raise", "allow"),
        ("JAX_NUMPY_DTYPE_PROMOTION", "strict", "standard"),
        ("JAX_DEFAULT_PRNG_IMPL", "rbg", "threefry2x32"),
        ("JAX_THREEFRY_PARTITIONABLE", "0", "1"),
        ("JAX_TRANSFER_GUARD", "disallow", "allow"),
    ],
)
def test_a_variable_of_jax_that_changes_what_is_computed_is_refused(name, value, usual):
    with pytest.raises(Refused, match=rf"^{name} is '{value}', .* set {name}={usual}$"):
        cli.check_jax_settings({name: value})
    cli.check_jax_settings({name: usual})


def test_the_variables_are_those_of_jax_with_its_own_defaults():
    """What JAX does without the variable is accepted."""
    values = {name: jax.config.values[name.lower()] for name in cli._JAX_SETTINGS}
    given = {name: str(value) for name, value in values.items() if value is not None}
    cli.check_jax_settings(given)
    assert given.keys() | {"JAX_TRANSFER_GUARD"} == values.keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "finetune", "features", "predict"])
def test_each_command_refuses_them_before_it_imports_jax(command, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", f"bert_jax.{command}"],
        env={**os.environ, "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: JAX_ENABLE_X64 is '1'") and ran.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "fill_mask"])
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--xla_nonsense=1", "Unknown flag in XLA_FLAGS: --xla_nonsense=1"),
        ("--xla_backend_optimization_level=high", "Couldn't interpret value high for flag"),
        ("no/such/file", 'Could not open file "no/such/file"'),
    ],
)
def test_flags_that_xla_cannot_read_are_named(command, flags, reason, tmp_path):
    place = {"train": f"--workdir={tmp_path}", "fill_mask": f"--checkpoint={tmp_path}"}[command]
    given = [place, *(["--config=configs/tiny.py"] if command == "train" else ["a [MASK]"])]
    ran = subprocess.run(
        [sys.executable, "-m", f"bert_jax.{command}", *given],
        env={**os.environ, "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert reason in ran.stderr


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no disk"), "error: no disk; nothing was lost"),
        (RuntimeError("a bug"), "RuntimeError: a bug"),
    ],
)
def test_who_has_to_leave_otherwise_is_told_why(end, error, reason):
    def leave(code, message):
        raise SystemExit(f"left with {code}: {message}")

    with pytest.raises(SystemExit, match=f"^left with 1: {reason}$"):
        end(lambda: None, raising(error), leave=leave)


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("UNAVAILABLE: the TPU is in use by process 7", 1, "cannot start that device now"),
        ("NOT_FOUND: no device", 2, "finds no such device here (NOT_FOUND: no device)"),
        ("Backend 'x' is not in the list of known backends: ['cpu']", 2, "finds no such device"),
    ],
)
def test_a_device_that_is_busy_may_come_later_and_one_that_is_absent_not(end, reason, code, words):
    message = f"Unable to initialize backend 'tpu': {reason} (set JAX_PLATFORMS='' to choose)"
    got, line = end(lambda: None, raising(RuntimeError(message)))
    assert got == code and words in line and line.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("JAX_PLATFORMS", "cuda"), ("JAX_PLATFORM_NAME", "gpu")]
)
def test_a_device_is_absent_without_asserts_too(name, value):
    code = (
        "import jax; from bert_jax.runtime import cli; import tests.data_pipeline.cli.no_flags as n"
    )
    code += "; print(cli.run(n.COMMAND, lambda *_: jax.devices() and 0, '', []))"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", name: value}
    command = [sys.executable, "-O", "-c", code]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    wanted = f"error: {name} is {value!r}, but JAX finds no such device here"
    assert ran.stdout == "2\n" and ran.stderr.startswith(wanted)


def test_help_shows_a_config_of_the_command(forked):
    assert "configs/finetune/" in forked("bert_jax.finetune", "--help").stdout
    missing = forked("bert_jax.finetune", "--workdir=x", code=2).stderr
    assert "configs/finetune/" in missing and "configs/base.py" not in missing
    listed = forked("bert_jax.finetune", "--workdir=x", "--config=configs", code=2).stderr
    assert "configs/finetune/ner.py" in listed and "configs/base.py" not in listed


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("gs://runs/mine", None),
        ("gs://runs", "gs://BUCKET/PATH"),
        ("gs://runs/", "gs://BUCKET/PATH"),
        ("s3://runs/mine", "mount other storage"),
        (__file__, "is a file; give a folder"),
        (f"{__file__}/mine", f"/mine, but {__file__} is a file; give a folder"),
    ],
)
def test_an_address_is_looked_at_before_anything_is_asked(address, words):
    expected = contextlib.nullcontext() if words is None else pytest.raises(ValueError, match=words)
    with expected:
        cli.check_address(address)


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """Flags that name a place below a folder of somebody else."""

    def __post_init__(self):
        raise PermissionError(errno.EACCES, "denied", "runs/x")


def test_a_place_that_may_not_be_looked_at_is_refused_before_slow_imports(monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["entry"])
    with pytest.raises(SystemExit) as end:
        cli.check_command_line(Command("bert_jax.entry", "", Unreadable, "an example"))
    assert (end.value.code, capfd.readouterr().err) == (2, "error: runs/x: denied\n")


def test_a_config_is_found_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.py").touch()
    assert cli.find_config("~/mine.py") == str(tmp_path / "mine.py")


START = """
import os, pathlib, sys
from bert_jax.runtime import cli
from data_pipeline.cli import main
main.start()
setting = sys.argv[1]
cli.use_huge_pages(setting)
print(os.environ.get("GLIBC_TUNABLES"), *sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's tunables")
def test_a_command_restarts_once_to_get_huge_pages(tmp_path):
    setting = tmp_path / "enabled pages"
    setting.write_text("always [madvise] never")
    ran = subprocess.run(
        [sys.executable, "-c", START, str(setting)],
        env={**os.environ, "GLIBC_TUNABLES": "glibc.x=2"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert ran.stdout == f"glibc.x=2:glibc.malloc.hugetlb=1 {setting}\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's tunables")
@pytest.mark.parametrize(
    ("kernel", "tunables", "is_starting"),
    [
        ("always madvise [never]", "glibc.x=2", True),
        ("always [madvise] never", "glibc.malloc.hugetlb=0", True),
        ("always [madvise] never", "glibc.x=2", False),
    ],
)
def test_no_other_process_restarts(tmp_path, monkeypatch, kernel, tunables, is_starting):
    setting, begun = tmp_path / "enabled", []
    setting.write_text(kernel)
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    monkeypatch.setattr(cli.main, "is_starting", lambda: is_starting)
    monkeypatch.setattr(cli.LINE, "close", lambda: None)
    monkeypatch.setattr(os, "execv", lambda program, command: begun.append(program))
    cli.use_huge_pages(str(setting))
    assert begun == []


@pytest.mark.parametrize(
    "flag",
    [
        "phases[0].seq_len=0",
        "phases[0].micro_batches=0",
        "model.num_attention_heads=0",
        "optim.learning_rate=0",
        "mesh.num_slices=0",
        "mesh.fsdp_size=-1",
    ],
)
def test_a_command_that_divides_by_a_setting_reads_none_out_of_range(flag):
    given, _ = overrides.take([f"--config.{flag}"], Config)
    config = cli.GivenConfig(Config, "configs/quickstart.py", tuple(given))
    with pytest.raises(Refused) as refused:
        config.load()
    assert str(refused.value).startswith(f"config.{flag.partition('=')[0]} is ")
