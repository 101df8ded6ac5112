"""How a command starts and ends: Ctrl-C, exit codes, one line for an error, the Python it names."""

import errno
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from data_pipeline.cli import main
from data_pipeline.cli.main import describe_os_error, find_python, run_main
from data_pipeline.io.address import how_to_install
from data_pipeline.io.refused import Refused
from tests.faults.runs import ROOT


@pytest.fixture(autouse=True)
def restored():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_the_process_and_then_raises_again():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main.end_on_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    main.raise_on_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_a_background_job_and_another_program_keep_their_handler(handler):
    signal.signal(signal.SIGINT, handler)
    main.end_on_ctrl_c()
    main.raise_on_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
@pytest.mark.parametrize("delay_secs", [0.0, 0.1, 0.2, 0.4, 0.8])
def test_ctrl_c_while_an_entry_imports_shows_no_traceback(delay_secs):
    """The delay begins where the entry takes SIGINT from Python, also on a busy machine."""
    entry = [sys.executable, "-m", "data_pipeline.build", "--help"]
    process = subprocess.Popen(entry, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not handles_sigint(process):
        time.sleep(0.001)
    while handles_sigint(process):
        time.sleep(0.001)
    time.sleep(delay_secs)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert "Traceback" not in error and error.count("\n") <= 1
    may_be_done = delay_secs >= 0.4
    assert process.returncode in (-signal.SIGINT, main.INTERRUPTED, *[0] * may_be_done)


def handles_sigint(process):
    """Return whether a process has a handler of its own for SIGINT: bit 1 of SigCgt, in hex."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << signal.SIGINT - 1)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (None, 0, ""),
        (KeyboardInterrupt(), 130, "error: interrupted; nothing was written\n"),
        (Refused("--x is 0"), 2, "error: --x is 0\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "stores/x"),
            2,
            "error: stores/x: Permission denied\n",
        ),
        (ConnectionError("the bucket is late"), 1, "error: the bucket is late\n"),
    ],
)
def test_work_ends_with_a_code_and_at_most_a_line(error, code, line, capsys):
    def work(argv: list[str]) -> None:
        if error is not None:
            raise error

    assert run_main(work, []) == code
    assert capsys.readouterr() == ("", line)


def test_a_bug_shows_its_traceback():
    def work(argv: list[str]) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug") as raised:
        run_main(work, [])
    assert not isinstance(raised.value, Refused)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_disk_is_called_so_by_whatever_finds_it():
    with pytest.raises(OSError) as of_python, open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    with pytest.raises(OSError) as of_numpy, open("/dev/full", "wb") as full:
        np.arange(10_000).tofile(full)
    for raised in (of_python, of_numpy):
        assert "no space is left on the disk; make room" in describe_os_error(raised.value)


def test_an_active_environment_is_called_by_its_name_and_another_by_its_path(monkeypatch, tmp_path):
    python = pathlib.Path(sys.executable).with_name("python")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(python.parent))
    assert find_python() == "python"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert find_python() == ".venv/bin/python"
    for folder in (tmp_path / ".venv" / "bin", tmp_path / ".venv" / "other"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        assert find_python() == str(tmp_path / ".venv" / "bin" / "python")


def test_nobody_is_sent_to_a_name_that_is_not_ours():
    """The package index has no bert_jax of ours; setup.py has the extras that are offered."""
    folders = ("bert_jax", "data_pipeline", "launch", "docs", "configs", "benchmarks")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    texts = {path: path.read_bytes() for path in [*paths, ROOT / "README.md"]}
    assert [path for path, text in texts.items() if b"install 'bert_jax" in text] == []
    setup = (ROOT / "setup.py").read_text()
    extras = re.compile(rb"how_to_install\([\"'](\w+)")
    called = {extra for text in texts.values() for extra in extras.findall(text)}
    assert called
    assert all(f'"{extra.decode()}":' in setup for extra in called)


def test_an_extra_is_installed_by_the_interpreter_in_use_from_the_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/a folder/bin/python")
    monkeypatch.chdir(ROOT)
    python = "'/a folder/bin/python' -m pip install"
    assert how_to_install("plan") == f"{python} -e '.[plan]'"
    monkeypatch.chdir(tmp_path)
    assert how_to_install("plan") == f"{python} -e '{ROOT}[plan]'"
