"""A build that is killed, interrupted or out of room: a whole store or none, and nothing else."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from data_pipeline.build import main
from data_pipeline.cli.main import STOP_SIGNALS
from data_pipeline.io import atomic
from data_pipeline.io.atomic import FILES, WORKING
from tests.data_pipeline.test_build import contents, corpus, corpus_text, flags, vocab_path
from tests.faults.runs import ROOT

__all__ = ["corpus", "vocab_path"]  # fixtures
pytestmark = pytest.mark.slow


def start(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "data_pipeline.build", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_it_encodes(process: subprocess.Popen[str], output: pathlib.Path) -> None:
    tokens = output / WORKING / FILES / "spool" / "tokens"
    while not (tokens.exists() and tokens.stat().st_size):
        assert process.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize("replaces", [pytest.param(False, marks=pytest.mark.long), True])
def test_killed_at_any_moment_the_same_command_again_works(replaces, corpus, vocab_path, tmp_path):
    older = ""
    if replaces:
        older = str(tmp_path / "older")
        small = tmp_path / "small.txt"
        small.write_text(corpus_text(9))
        assert main(flags(small, older, vocab_path)) == 0
    argv = flags(corpus, tmp_path / "store", vocab_path, f"--overwrite={replaces}")
    program = [sys.executable, "-m", "tests.data_pipeline.build_killed"]
    done = subprocess.run(
        [*program, older, tmp_path / "store", *argv], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_the_processes_of_a_killed_build_end(corpus, vocab_path, tmp_path):
    corpus.write_text(corpus_text(80_000))
    process = start(*flags(corpus, tmp_path / "store", vocab_path, "--workers=2"))
    wait_until_it_encodes(process, tmp_path / "store")
    process.kill()
    process.communicate()
    for _ in range(200):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("processes outlive the build that started them")


@pytest.mark.parametrize("delay_secs", [0.0, 0.1, None])
def test_ctrl_c_ends_workers_that_import_or_encode_without_a_traceback_and_leaves_nothing(
    corpus, vocab_path, tmp_path, delay_secs
):
    corpus.write_text(corpus_text(80_000))
    process = start(*flags(corpus, tmp_path / "store", vocab_path, "--workers=2"))
    if delay_secs is None:
        wait_until_it_encodes(process, tmp_path / "store")
    else:
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:  # the tracker of resources and a worker
            time.sleep(0.01)
        time.sleep(delay_secs)
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the workers, too
    _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (130, "interrupted; nothing was written\n")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_does_not_stop_a_build_that_replaces_a_store(
    corpus, vocab_path, tmp_path, monkeypatch, stops_raise, number
):
    output = tmp_path / "store"
    assert main(flags(corpus, output, vocab_path)) == 0
    expected = contents(output)
    remove = atomic._remove

    def interrupted(path):
        if path.parent == output:  # between the moves
            os.kill(os.getpid(), number)
        remove(path)

    monkeypatch.setattr(atomic, "_remove", interrupted)
    assert main(flags(corpus, output, vocab_path, "--overwrite=true")) == 0
    assert contents(output) == expected


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a disk of so many kilobytes in a folder."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(kilobytes: int) -> pathlib.Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
        if sys.platform != "linux" or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        return disk

    yield mount
    subprocess.run(["umount", str(disk)], capture_output=True)


@pytest.mark.parametrize("kilobytes, workers", [(120, 1), (900, 2)])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_store(
    kilobytes, workers, corpus, vocab_path, small_disk
):
    output = small_disk(kilobytes) / "store"
    assert main(flags(corpus, output, vocab_path)) == 0
    before = contents(output)
    corpus.write_text(corpus_text(12_000))
    more = (f"--workers={workers}", "--overwrite=true", "--drop_duplicate_lines=true")
    process = start(*flags(corpus, output, vocab_path, *more))
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error.count("\n") == 1 and "no space is left on the disk; make room" in error
    assert contents(output) == before
