"""launch/worker/on_worker_train.sh, run as on a worker, with Pythons that pretend to train."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.launch.scripts import LAUNCH, call, is_alive, wait_for, write_command

pytestmark = pytest.mark.slow

SCRIPT = str(LAUNCH / "worker" / "on_worker_train.sh")
LOG = "logs/train.log"
TRAINS = ("while [[ ! -s end ]]; do sleep 0.05; done", 'exit "$(cat end)"')


class Worker:
    """A worker's REMOTE_DIR and what on_worker_train.sh says there."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.log, self.processes = folder, folder / LOG, []
        lock = str(folder / "libtpu_lockfile")
        self.environment = os.environ | {"HOSTNAME": "w-1", "LIBTPU_LOCK": lock}
        self.log.parent.mkdir()

    def says(self, *arguments: str, code: int = 0) -> str:
        ran = call(["bash", SCRIPT, *arguments], cwd=self.folder, env=self.environment)
        assert ran.returncode == code, ran
        return (ran.stdout + ran.stderr).rstrip("\n")

    def start(self, *lines: str, flags=(), bucket: str = "", code: int = 0) -> str:
        """Start a Python of these lines, or the one before; return what the script says."""
        if lines:
            write_command(self.folder / "python", *lines)
        said = self.says("./python", LOG, bucket, *flags, code=code)
        if "echo ready" in lines:
            wait_for(lambda: "ready" in self.log.read_text())
        return said

    def status(self) -> str:
        return self.says("--status", LOG)

    def stop(self, code: int = 0, **environment: str) -> str:
        self.environment |= environment
        return self.says("--stop", LOG, code=code)

    def end(self, code: int) -> None:
        (self.folder / "end").write_text(str(code))
        wait_for(lambda: self.status() == f"ended {code} -")

    def read_pids(self, name: str = "logs/train.pid") -> list[int]:
        path = self.folder / name
        wait_for(lambda: path.exists() and path.read_text())
        return [int(word) for word in path.read_text().split()]

    def sleep(self, folder: pathlib.Path, *words: str, **options) -> subprocess.Popen:
        """Start a process that sleeps until the test is over."""
        script = "import sys, time; print('here', flush=True); time.sleep(60)"
        command, pipe = [sys.executable, "-c", script, *words], {"stdout": subprocess.PIPE}
        self.processes.append(subprocess.Popen(command, cwd=folder, text=True, **pipe, **options))
        assert self.processes[-1].stdout.readline() == "here\n"
        return self.processes[-1]


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "bert_jax").mkdir()
    worker = Worker(tmp_path / "bert_jax")
    yield worker
    worker.stop(STOP_GRACE_SECS="0")
    for process in worker.processes:
        process.kill()
        process.communicate()


def test_a_run_from_its_start_to_its_exit_code_and_the_next_one(worker):
    assert worker.status() == "never started"
    flag = "--config.data.store=/mnt/my stores/a'$(id)\""
    prints = 'printf "%s\\n" "$@"'
    said = worker.start(prints, "echo a warning >&2", *TRAINS, flags=("--multihost", flag))
    assert "w-1: training runs as process" in said
    state, pid, quiet_secs, step = worker.status().split()
    assert (state, step) == ("running", "-")
    assert 0 <= int(quiet_secs) < 20
    assert os.getpgid(int(pid)) == os.getsid(int(pid)) == int(pid) != os.getsid(0)
    assert f"(process {pid})" in worker.start(code=2)
    worker.end(86)
    wait_for(lambda: worker.log.read_text().endswith("Z ended with exit code 86\n"))
    first, *said, _ = worker.log.read_text().splitlines()
    assert first.endswith("Z train.sh")
    assert said == ["-u", "-m", "bert_jax.train", "--multihost", flag, "a warning"]
    (worker.folder / "end").unlink()
    worker.start()
    assert worker.status().startswith("running ")
    assert worker.log.read_text().count("Z train.sh\n") == 2


def test_a_log_that_was_moved_still_shows_that_the_training_writes(worker):
    worker.start("echo ready", *TRAINS)
    worker.log.rename(worker.folder / "logs" / "older.log")
    for log in (None, worker.log):
        if log:
            log.touch()
            os.utime(log, (0, 0))
        assert 0 <= int(worker.status().split()[2]) < 20


def test_a_pid_of_another_process_is_no_run(worker):
    """As after the worker has started anew: files of a run that had no time to write its code."""
    worker.start(*TRAINS)
    os.killpg(worker.read_pids()[0], signal.SIGKILL)
    wait_for(lambda: worker.status() == "ended 137 -")
    (worker.folder / "logs/train.pid").write_text(f"{os.getpid()} {os.getpid()}\n")
    assert worker.status() == "ended 137 -"
    assert "no training runs here" in worker.stop()
    assert "training runs as process" in worker.start()


def test_a_python_that_outlives_its_runner_still_runs_and_can_be_stopped(worker):
    worker.start(*TRAINS)
    runner, python = worker.read_pids()
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: not is_alive(runner))
    assert worker.status().startswith("running ")
    worker.start(code=2)
    assert "exit code 137" in worker.stop()
    assert not is_alive(python)


@pytest.mark.parametrize("is_shutdown", [False, True])
def test_stop_and_the_shutdown_of_a_machine_let_the_training_save(worker, is_shutdown):
    worker.start("trap 'echo saved; exit 143' TERM", "echo ready", "while sleep 0.05; do :; done")
    (worker.folder / "launch").symlink_to(LAUNCH)
    around = worker.environment | {"HOME_DIR": str(worker.folder.parent)}
    shutdown = ["bash", str(LAUNCH / "worker" / "on_shutdown.sh")]
    said = call(shutdown, env=around).stdout.rstrip() if is_shutdown else worker.stop()
    assert said == "w-1: training has stopped, exit code 143"
    assert worker.status() == "ended 143 -"
    assert "\nsaved\n" in worker.log.read_text()


def test_stop_kills_what_does_not_listen_and_all_its_children(worker):
    child = "( trap '' TERM; while sleep 0.05; do :; done ) & echo $! >child"
    worker.start("trap '' TERM", child, "while sleep 0.05; do :; done")
    child = worker.read_pids("child")
    assert "w-1: killed, as 1 s after SIGTERM" in worker.stop(STOP_GRACE_SECS="1")
    assert worker.status() == "ended 137 -"
    assert not any(map(is_alive, worker.read_pids() + child))


def test_stop_does_not_wait_for_ever_for_what_cannot_be_killed(worker):
    worker.start("setsid sleep 60 & echo $! >child", *TRAINS)
    (child,) = worker.read_pids("child")
    wait_for(lambda: os.getsid(child) == child)  # out of reach of the group's signals
    assert "still holds logs/train.lock" in worker.stop(1, KILL_SECS="1", STOP_GRACE_SECS="0")
    os.kill(child, signal.SIGKILL)


def test_the_workdir_in_another_spelling_and_its_newest_checkpoint(worker):
    worker.start(*TRAINS, flags=("--workdir=gs://b/runs/a/",))
    for workdir, state in {"gs://b/runs/a": "running", "gs://b/runs": "busy"}.items():
        assert worker.says("--status", LOG, workdir).split()[0] == state
    worker.end(0)
    for name in ("8", "20", "0100", "300.orbax-checkpoint-tmp", "quarantine"):
        (worker.folder / "my runs" / "checkpoints" / name).mkdir(parents=True)
    worker.start(flags=("--workdir=my runs",))
    wait_for(lambda: worker.status() == "ended 0 100")


def test_stacks_are_asked_of_a_training_that_knows_how(worker):
    """One that does not would be ended by the signal."""
    worker.environment["STACKS_SECS"] = "0.5"
    worker.start("trap 'echo all stacks >&2' QUIT", "echo ready", *TRAINS)
    assert worker.says("--stacks", LOG).splitlines()[-2:] == ["ready", "all stacks"]
    assert worker.status().startswith("running ")
    worker.end(0)
    worker.start("exec sleep 30")
    assert "the training writes no stacks now" in worker.says("--stacks", LOG)
    assert worker.status().startswith("running ")


def copy_log(worker, calls):
    """Start a training whose log is copied meanwhile, and wait for three copies."""
    worker.environment["UPLOAD_SECS"] = "0.1"
    worker.start("echo begun", *TRAINS, bucket="gs://b/logs")
    wait_for(lambda: calls.exists() and calls.read_text().count("\n") > 2)


def test_the_log_is_in_the_bucket_meanwhile_and_at_the_end(bucket, worker):
    copy_log(worker, bucket / "calls")
    worker.end(0)
    day = worker.log.read_text()[:20].replace("-", "").replace(":", "")
    (copy,) = (bucket / "b" / "logs").iterdir()
    assert copy.name == f"w-1-{day}.log"
    wait_for(lambda: copy.read_text() == worker.log.read_text())
    asked = set((bucket / "calls").read_text().splitlines())
    assert asked == {f"storage cp --quiet {LOG} gs://b/logs/{copy.name}"}


def test_a_bucket_that_takes_nothing_ends_no_training(bucket, worker):
    (bucket / "b").touch()  # no folder
    copy_log(worker, bucket / "calls")
    assert worker.status().startswith("running ")
    worker.end(0)
    wait_for(lambda: "gs://b/logs: " in worker.log.read_text())
    assert "Not a directory" in worker.log.read_text().splitlines()[-1]


def test_a_python_that_is_not_there_is_an_exit_code(worker):
    worker.start()
    wait_for(lambda: worker.status() == "ended 127 -")
    assert "/python: No such file" in worker.log.read_text()


# --clear: what it ends and removes before a training, and what it leaves.


def test_what_holds_the_lock_of_an_ended_run_is_ended(worker):
    assert worker.says("--clear", LOG) == ""
    logs = worker.log.parent
    with open(logs / "train.lock", "a") as lock:
        child = worker.sleep(worker.folder, pass_fds=[lock.fileno()], start_new_session=True)
        subprocess.run(["flock", "--nonblock", "0"], check=True, stdin=lock)
    worker.log.touch()
    (logs / "train.pid").write_text(f"{child.pid} {child.pid}\n")
    assert "training runs here already (running " in worker.says("--clear", LOG, code=2)
    assert child.poll() is None
    (logs / "train.exit_code").write_text("137\n")
    worker.says("--clear", LOG)
    assert child.wait(timeout=10) != 0


@pytest.mark.parametrize(
    "how", ["-m bert_jax.train", "-m bert_jax train", ".venv/bin/bert-jax train"]
)
def test_a_training_that_somebody_started_by_hand_is_named_and_left_alone(worker, how):
    words = (*how.split(), "--config=a")
    worker.sleep(worker.folder.parent, *words)  # in another folder it is not ours
    assert worker.says("--clear", LOG) == ""
    other = worker.sleep(worker.folder, *words)
    worker.folder = worker.folder.parent / "link"  # as a home folder may be
    worker.folder.symlink_to("bert_jax")
    worker.environment["PWD"] = str(worker.folder)
    assert f"kill {other.pid}" in worker.says("--clear", LOG, code=2)
    assert other.poll() is None


def test_a_lock_of_libtpu_goes_once_nobody_has_it_open(worker):
    lock = worker.folder / "libtpu_lockfile"
    lock.touch()
    with open(lock):
        assert "is in use; left unchanged" in worker.says("--clear", LOG)
        assert lock.exists()
    assert "removed" in worker.says("--clear", LOG)
    assert not lock.exists()
