"""How a command starts and ends: Ctrl-C, exit codes, one line for an error, the Python it names."""

import errno
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import tomllib

import numpy as np
import pytest

from data_pipeline.cli import main
from data_pipeline.cli.main import describe_os_error, find_python, run_main
from data_pipeline.io import Refused
from data_pipeline.io.address import make_install_command
from data_pipeline.io.errors import explain
from tests.data_pipeline.cli.no_flags import COMMAND
from tests.faults.runs import ROOT


@pytest.fixture(autouse=True)
def restored():
    before = {number: signal.getsignal(number) for number in main.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_ends_the_process_and_then_raises_again():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main.end_on_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    main.begin_work(outlives_reader=True)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "handler"),
    [
        *((signal.SIGINT, signal.SIG_IGN), (signal.SIGHUP, signal.SIG_IGN)),
        (signal.SIGINT, lambda number, frame: None),
    ],
)
def test_a_background_job_and_another_program_keep_their_handler(number, handler):
    signal.signal(number, handler)
    main.end_on_ctrl_c()
    main.begin_work(outlives_reader=True)
    assert signal.getsignal(number) is handler


@pytest.mark.parametrize("number", main.STOP_SIGNALS)
def test_each_signal_raises_in_the_work_of_a_command_and_chooses_its_code(stops_raise, number):
    def work(log, flags):
        signal.raise_signal(number)

    assert run_main(COMMAND, work, []) == 128 + number
    # A further Ctrl-C ends the process, without a traceback of Python's shutdown.
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_the_signals_that_follow_the_first_do_not_disturb_the_cleaning_up(stops_raise):
    with pytest.raises(main.Stopped):
        signal.raise_signal(signal.SIGTERM)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.raise_signal(number)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


WITHOUT_READER = """
import sys
from data_pipeline.cli import main
from tests.data_pipeline.cli.no_flags import COMMAND
main.start()
print("imports" * 10_000, flush=True)
{before}
def work(log, flags):
    print("a result" * 10_000)
    print("an error", file=sys.stderr)
    open({done!r}, "w").close()
sys.exit(main.run_main(COMMAND, work, [], outlives_reader={outlives}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without", "outlives"),
    [
        *(("reader of stdout", True), ("reader of stdout", False), ("reader of both", True)),
        *(("terminal", True), ("terminal", False), ("outputs", False)),
    ],
)
def test_work_goes_on_without_a_screen_or_ends_as_head_wants(tmp_path, outlives, without):
    """Once the master of a terminal is closed, writing to the terminal raises EIO."""
    done = tmp_path / "done"
    opened, written = os.openpty() if without == "terminal" else os.pipe()
    before = "import os; os.dup2(1, 2)" if without == "reader of both" else ""
    code = WITHOUT_READER.format(done=str(done), outlives=outlives, before=before)
    command = [sys.executable, "-c", code]
    if without == "outputs":
        command = ["sh", "-c", 'exec "$0" "$@" >&- 2>&-', *command]
    os.close(opened)
    env = {**os.environ, "TERM": "dumb"}
    ran = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, env=env, cwd=ROOT)
    os.close(written)
    has_reader = without == "outputs"  # nothing is missed
    assert b"Traceback" not in ran.stderr and b"Exception" not in ran.stderr
    assert ran.returncode == (0 if outlives or has_reader else 141)
    assert done.exists() == (outlives or has_reader)


def test_help_needs_no_reader_where_the_work_does():
    code = (
        "import sys; from data_pipeline.cli import main; "
        "from tests.data_pipeline.cli.no_flags import COMMAND; main.start(); "
        "sys.exit(main.run_main(COMMAND, None, ['--help'], outlives_reader=False))"
    )
    opened, written = os.pipe()
    os.close(opened)
    command, env = [sys.executable, "-u", "-c", code], {**os.environ, "TERM": "dumb"}
    ran = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, env=env, cwd=ROOT)
    os.close(written)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_block_gets_all_output(unbuffered):
    code = "from data_pipeline.cli import main; main.outlive_readers(); print('x' * 300_000)"
    opened, written = os.pipe()
    os.set_blocking(written, False)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=written, env=env, cwd=ROOT) as ran:
        os.close(written)
        with os.fdopen(opened, "rb") as pipe:
            assert len(pipe.read()) == 300_001
    assert ran.returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])  # as the C locale's
def test_a_character_that_the_screen_lacks_is_shown_by_its_number(encoding):
    code = "from data_pipeline.cli import main; main.outlive_readers(); print('\\u00e9\\udcff')"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    ran = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True)
    assert (ran.returncode, ran.stdout) == (0, b"\\xe9\\udcff\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_refusal_keeps_its_code_where_a_full_disk_does_not_take_its_line():
    code = (
        "import sys; from data_pipeline.cli import main; "
        "from tests.data_pipeline.cli.no_flags import COMMAND; main.start(); "
        "sys.exit(main.run_main(COMMAND, None, ['--nonsense']))"
    )
    with open("/dev/full", "wb") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full, cwd=ROOT).returncode == 2


def test_a_current_folder_that_was_deleted_is_named(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(OSError) as raised:
        os.getcwd()
    assert describe_os_error(raised.value).startswith("the current folder is there no more; cd to")


def test_a_stdin_that_is_closed_is_empty():
    code = "from data_pipeline.cli import main; main.outlive_readers(); "
    code += "from data_pipeline.labeled.lines import open_lines; print(list(open_lines('-')))"
    command = ["bash", "-c", '"$@" <&-', "bash", sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"[]\n", b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "flag"), [("bert_jax", "--help"), ("data_pipeline.inspect", "--nonsense")]
)
def test_what_a_command_says_before_its_work_needs_no_reader(entry, flag):
    command = f"{sys.executable} -u -m {entry} {flag} 2>&1 >&3 | cat"
    ran = subprocess.run(
        ["bash", "-c", f"{{ {command} 3>&1; }} 3>&1 | true"], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert b"Traceback" not in ran.stdout and b"Exception" not in ran.stdout


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (None, 0, ""),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written\n"),
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
    def work(log, flags) -> None:
        if error is not None:
            raise error

    assert run_main(COMMAND, work, []) == code
    assert capsys.readouterr() == ("", line)


def test_a_bug_shows_its_traceback():
    def work(log, flags) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug") as raised:
        run_main(COMMAND, work, [])
    assert not isinstance(raised.value, Refused)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("entry", "code"), [("bert_jax", 2), ("bert_jax.train", 1), ("data_pipeline.inspect", 2)]
)
def test_help_that_a_full_disk_does_not_take_is_an_error_of_one_line(entry, code):
    command = [sys.executable, "-m", entry, "--help"]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=ROOT)
    assert ran.returncode == code
    assert ran.stderr.startswith(b"error: no space is left") and ran.stderr.count(b"\n") == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_disk_is_called_so_by_whatever_finds_it():
    with pytest.raises(OSError) as of_python, open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    with pytest.raises(OSError) as of_numpy, open("/dev/full", "wb") as full:
        np.arange(10_000).tofile(full)
    for raised in (of_python, of_numpy):
        assert "no space is left on the disk; make room" in describe_os_error(raised.value)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EDQUOT, "the disk quota of this user is used up; make room"),
        (errno.EFBIG, "the file would be larger than this process may write; raise the limit"),
    ],
)
def test_a_limit_of_writing_has_a_way_out(number, words):
    error = OSError(number, os.strerror(number), "stores/x")
    assert describe_os_error(error).startswith(f"stores/x: {words}")
    explained = explain(OSError(number, os.strerror(number)), "runs/x", "saving step 30")
    assert str(explained).startswith(f"runs/x: saving step 30 failed, {words.partition(';')[0]}")


def test_a_machine_without_a_temporary_folder_is_told_of_the_variable(monkeypatch, capfd):
    places = ["/tmp", "/work"]

    def make_none() -> str:
        raise FileNotFoundError(errno.ENOENT, f"No usable temporary directory found in {places}")

    with monkeypatch.context() as changed:  # pytest's own capture needs such a folder
        changed.setattr(tempfile, "tempdir", None)
        changed.setattr(tempfile, "_get_default_tempdir", make_none)
        changed.setattr(sys, "argv", ["command"])
        assert run_main(COMMAND, lambda log, flags: None, hides_libraries=True) == main.REFUSED
    said = f"error: No usable temporary directory found in {places}; name a folder with room by "
    assert capfd.readouterr() == ("", f"{said}the environment variable TMPDIR\n")


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
    monkeypatch.setattr(sys, "executable", "/a folder/bin/python")
    assert find_python() == "'/a folder/bin/python'"


def test_nobody_is_sent_to_a_name_that_is_not_ours():
    """The package index has no bert_jax of ours; pyproject.toml has the extras that are offered."""
    folders = ("bert_jax", "data_pipeline", "launch", "docs", "configs", "benchmarks")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    texts = {path: path.read_bytes() for path in [*paths, ROOT / "README.md"]}
    assert [path for path, text in texts.items() if b"install 'bert_jax" in text] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.compile(rb"make_install_command\([\"'](\w+)")
    called = {extra for text in texts.values() for extra in extras.findall(text)}
    assert called
    assert {extra.decode() for extra in called} <= project["optional-dependencies"].keys()


def test_an_extra_is_installed_by_the_interpreter_in_use_from_the_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/a folder/bin/python")
    monkeypatch.chdir(ROOT)
    python = "'/a folder/bin/python' -m pip install"
    assert make_install_command("plan") == f"{python} -e '.[plan]'"
    monkeypatch.chdir(tmp_path)
    assert make_install_command("plan") == f"{python} -e '{ROOT}[plan]'"
