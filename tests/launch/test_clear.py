"""on_worker_train.sh --clear: what it ends and removes before a training, and what it leaves."""

import subprocess
import sys

import pytest

from tests.launch.pods import run_on
from tests.launch.scripts import LAUNCH

pytestmark = pytest.mark.slow

CLEAR = f"bash {LAUNCH / 'worker' / 'on_worker_train.sh'} --clear logs/train.log"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bert_jax" / "logs").mkdir(parents=True)
    return tmp_path / "bert_jax"


def clear(folder, lock=None, code=0):
    ran = run_on(folder, CLEAR, LIBTPU_LOCK=str(lock or folder / "absent"))
    assert ran.returncode == code, ran
    return ran.stdout + ran.stderr


@pytest.fixture
def asleep():
    """A function that starts a process which sleeps until the test is over."""
    started = []

    def start(folder, *words, **options):
        script = "import sys, time; print('here', flush=True); time.sleep(60)"
        command, options = [sys.executable, "-c", script, *words], options | {"cwd": folder}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        assert process.stdout.readline() == "here\n"
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_holds_the_lock_of_an_ended_run_is_ended(folder, asleep):
    assert clear(folder) == ""  # of a new worker
    logs = folder / "logs"
    with open(logs / "train.lock", "a") as lock:
        child = asleep(folder, pass_fds=[lock.fileno()], start_new_session=True)
        subprocess.run(["flock", "--nonblock", "0"], check=True, stdin=lock)
    (logs / "train.log").touch()
    (logs / "train.pid").write_text(f"{child.pid} {child.pid}\n")
    assert "training runs here already (running " in clear(folder, code=2)
    assert child.poll() is None
    (logs / "train.exit_code").write_text("137\n")
    clear(folder)
    assert child.wait(timeout=10) != 0


def test_a_training_that_somebody_started_by_hand_is_named_and_left_alone(folder, asleep, tmp_path):
    asleep(tmp_path, "-m", "bert_jax.train", "--config=a")  # in another folder it is not ours
    assert clear(folder) == ""
    other = asleep(folder, "-m", "bert_jax.train", "--config=a")
    said = clear(folder, code=2)
    assert f"process {other.pid} trains in {folder}" in said
    assert f"kill {other.pid}" in said
    assert other.poll() is None


def test_a_lock_of_libtpu_goes_once_nobody_has_it_open(folder, tmp_path):
    lock = tmp_path / "libtpu_lockfile"
    lock.touch()
    with open(lock):
        assert "is in use; left unchanged" in clear(folder, lock)
        assert lock.exists()
    assert "removed" in clear(folder, lock)
    assert not lock.exists()
