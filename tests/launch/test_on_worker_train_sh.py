"""launch/worker/on_worker_train.sh, run as on a worker, with Pythons that pretend to train."""

import contextlib
import os
import pathlib
import signal
import time

import pytest

from tests.launch.scripts import LAUNCH, call, write_command

pytestmark = pytest.mark.slow

SCRIPT = str(LAUNCH / "worker" / "on_worker_train.sh")
LOG = "logs/train.log"
TRAINS = ("while [[ ! -e end ]]; do sleep 0.05; done", 'exit "$(cat end)"')


class Worker:
    """A worker's REMOTE_DIR and what on_worker_train.sh says there."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.log = folder / LOG
        self.environment: dict[str, str] = {}

    def python(self, *lines: str) -> None:
        write_command(self.folder / "python", *lines)

    def says(self, *arguments: str, code: int = 0) -> str:
        around = os.environ | {"HOSTNAME": "w-1"} | self.environment
        ran = call(["bash", SCRIPT, *arguments], cwd=self.folder, env=around)
        assert ran.returncode == code, ran
        return (ran.stdout + ran.stderr).rstrip("\n")

    def start(self, *flags: str, bucket: str = "", code: int = 0) -> str:
        return self.says("./python", LOG, bucket, *flags, code=code)

    def status(self) -> list[str]:
        return self.says("--status", LOG).split()

    def end(self, code: int) -> None:
        (self.folder / "end").write_text(str(code))
        self.wait_for(lambda: self.status()[0] == "ended")

    def pids(self) -> list[int]:
        return [int(word) for word in (self.folder / "logs/train.pid").read_text().split()]

    @staticmethod
    def wait_for(holds) -> None:
        deadline = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def worker(tmp_path):
    worker = Worker(tmp_path)
    yield worker
    worker.environment["STOP_GRACE_SECS"] = "0"
    worker.says("--stop", LOG)


def is_alive(pid: int) -> bool:
    stat = pathlib.Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_run_from_its_start_to_its_exit_code(worker):
    worker.python('printf "%s\\n" "$@"', "echo a warning >&2", *TRAINS)
    assert worker.status() == ["never", "started"]
    flag = "--config.data.store=/mnt/my stores/a'$(id)\""
    assert "w-1: training runs as process" in worker.start("--multihost", flag)
    state, pid, quiet_secs, step = worker.status()
    assert (state, step) == ("running", "-")
    assert 0 <= int(quiet_secs) < 20
    assert os.getpgid(int(pid)) == os.getsid(int(pid)) == int(pid) != os.getsid(0)
    worker.end(86)
    assert worker.status() == ["ended", "86", "-"]
    first, *said, last = worker.log.read_text().splitlines()
    assert first.endswith("Z train.sh")
    assert said == ["-u", "-m", "bert_jax.train", "--multihost", flag, "a warning"]
    assert last.endswith("Z ended with exit code 86")


def test_a_second_run_is_refused_while_one_runs_and_adds_to_the_log_after(worker):
    worker.python("echo trains", *TRAINS)
    worker.start()
    said = worker.start("--again", code=2)
    assert f"training runs here already (process {worker.pids()[0]})" in said
    assert "launch/train.sh --stop" in said
    worker.end(1)
    (worker.folder / "end").unlink()
    worker.start()
    assert worker.status()[0] == "running"
    assert worker.log.read_text().count("Z train.sh\n") == 2


def test_a_pid_of_another_process_is_no_run(worker):
    """As after the worker has started anew: files of a run that had no time to write its code."""
    worker.python(*TRAINS)
    worker.start()
    runner = worker.pids()[0]
    os.killpg(runner, signal.SIGKILL)
    worker.wait_for(lambda: worker.status() == ["ended", "137", "-"])
    (worker.folder / "logs/train.pid").write_text(f"{os.getpid()} {os.getpid()}\n")
    assert worker.status() == ["ended", "137", "-"]
    assert "no training runs here" in worker.says("--stop", LOG)
    assert "training runs as process" in worker.start()


def test_a_python_that_outlives_its_runner_still_runs_and_can_be_stopped(worker):
    worker.python(*TRAINS)
    worker.start()
    runner, python = worker.pids()
    os.kill(runner, signal.SIGKILL)
    worker.wait_for(lambda: not is_alive(runner))
    assert worker.status()[0] == "running"
    assert "runs here already" in worker.start(code=2)
    assert "exit code 137" in worker.says("--stop", LOG)
    assert not is_alive(python)


def test_stop_lets_the_training_save(worker):
    worker.python("trap 'echo saved; exit 143' TERM", "echo ready", "while sleep 0.05; do :; done")
    worker.start()
    worker.wait_for(lambda: "ready" in worker.log.read_text())
    assert worker.says("--stop", LOG) == "w-1: training has stopped, exit code 143"
    assert worker.status() == ["ended", "143", "-"]
    assert "\nsaved\n" in worker.log.read_text()


def test_stop_kills_what_does_not_listen_and_all_its_children(worker):
    child = "( trap '' TERM; while sleep 0.05; do :; done ) & echo $! >child"
    worker.python("trap '' TERM", child, "while sleep 0.05; do :; done")
    worker.start()
    worker.wait_for((worker.folder / "child").exists)
    worker.environment["STOP_GRACE_SECS"] = "1"
    said = worker.says("--stop", LOG)
    assert "w-1: killed, as 1 s after SIGTERM it was still there" in said
    assert worker.status() == ["ended", "137", "-"]
    assert not any(map(is_alive, [*worker.pids(), int((worker.folder / "child").read_text())]))


def test_stop_does_not_wait_for_ever_for_what_cannot_be_killed(worker):
    worker.python("setsid sleep 60 & echo $! >child", *TRAINS)
    worker.start()
    worker.wait_for((worker.folder / "child").exists)
    child = int((worker.folder / "child").read_text())
    worker.wait_for(lambda: os.getsid(child) == child)  # out of reach of the group's signals
    worker.environment["KILL_SECS"] = "1"
    worker.environment["STOP_GRACE_SECS"] = "1"
    said = worker.says("--stop", LOG, code=1)
    assert "a process of the training still holds logs/train.lock" in said
    os.kill(child, signal.SIGKILL)


def test_the_workdir_in_another_spelling_and_its_newest_checkpoint(worker):
    worker.python(*TRAINS)
    worker.start("--workdir=gs://b/runs/a/")
    assert worker.says("--status", LOG, "gs://b/runs/a").startswith("running ")
    assert worker.says("--status", LOG, "gs://b/runs").startswith("busy ")
    worker.end(0)
    checkpoints = worker.folder / "my runs" / "checkpoints"
    for name in ("8", "20", "0100", "300.orbax-checkpoint-tmp", "quarantine"):
        (checkpoints / name).mkdir(parents=True)
    worker.start("--workdir=my runs")
    worker.wait_for(lambda: worker.status() == ["ended", "0", "100"])


def test_stacks_are_asked_of_a_training_that_knows_how(worker):
    """One that does not would be ended by the signal."""
    worker.python("trap 'echo all stacks >&2' QUIT", "echo ready", *TRAINS)
    worker.start()
    worker.wait_for(lambda: "ready" in worker.log.read_text())
    worker.environment["STACKS_SECS"] = "0.5"
    assert worker.says("--stacks", LOG).splitlines()[-2:] == ["ready", "all stacks"]
    assert worker.status()[0] == "running"
    worker.end(0)
    worker.python("exec sleep 30")
    worker.start()
    assert "the training writes no stacks now" in worker.says("--stacks", LOG)
    assert worker.status()[0] == "running"


def copies(worker, *lines):
    """Start a training whose log is copied by a gcloud of these lines."""
    path = worker.folder / "bin"
    write_command(path / "gcloud", *lines)
    worker.environment |= {"PATH": f"{path}:{os.environ['PATH']}", "UPLOAD_SECS": "0.1"}
    worker.python("echo begun", *TRAINS)
    worker.start(bucket="gs://b/logs")


def test_the_log_is_in_the_bucket_meanwhile_and_at_the_end(worker):
    copies(worker, 'echo "$*" >>copied', 'cp "$4" "${5##*/}"')
    copied = worker.folder / "copied"
    worker.wait_for(copied.exists)
    worker.end(0)
    day = worker.log.read_text()[:20].replace("-", "").replace(":", "")
    name = f"w-1-{day}.log"
    worker.wait_for(lambda: (worker.folder / name).read_text() == worker.log.read_text())
    asked = set(copied.read_text().splitlines())
    assert asked == {f"storage cp --quiet {LOG} gs://b/logs/{name}"}


def test_a_bucket_that_takes_nothing_ends_no_training(worker):
    copies(worker, "echo tried >>tries", "echo no permission >&2", "exit 1")
    tries = worker.folder / "tries"
    worker.wait_for(lambda: tries.exists() and len(tries.read_text()) > 12)
    assert worker.status()[0] == "running"
    worker.end(0)
    assert worker.status() == ["ended", "0", "-"]
    worker.wait_for(lambda: "no permission" in worker.log.read_text())
    assert "the log was not copied to gs://b/logs: " in worker.log.read_text()


def test_a_python_that_is_not_there_is_an_exit_code(worker):
    worker.start()
    worker.wait_for(lambda: worker.status() == ["ended", "127", "-"])
    assert "./python: No such file" in worker.log.read_text()
