"""launch/on_worker_setup.sh, run in a temporary home folder with stand-ins for pip and uv."""

import fcntl
import pathlib
import shlex
import subprocess

import pytest

from tests.launch.clones import commit, git, make_clone
from tests.launch.scripts import LAUNCH
from tests.launch.workers import make_tools, run_on

SCRIPT = LAUNCH / "on_worker_setup.sh"


class Worker:
    """A home folder that setup can be run in, for the present commit of a clone."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.clone = make_clone(folder / "clone")
        self.home = folder / "worker-0"
        self.home.mkdir()
        self.code = self.home / "bert_jax"
        self.path = make_tools(folder / "tools")

    def set_up(
        self, python: str = ".venv/bin/python", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        archive = self.home / "sent.tar.gz"
        git(self.clone, "archive", "--format=tar.gz", f"--output={archive}", "HEAD")
        (self.home / "calls.log").unlink(missing_ok=True)
        head = git(self.clone, "rev-parse", "HEAD")
        command = shlex.join(["bash", str(SCRIPT), archive.name, head, "bert_jax", python])
        return run_on(self.home, command, **{"PATH": self.path} | environment)

    def calls(self) -> list[str]:
        return (self.home / "calls.log").read_text().splitlines()


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


def test_a_new_worker_gets_code_uv_python_and_the_packages_in_this_order(worker):
    ran = worker.set_up()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith("worker-0: ready: Python 3.12.0, jax 0\n")
    pip, venv, sync, install = (call for call in worker.calls() if "--version" not in call)
    assert "--target=.uv" in pip
    assert "--require-hashes --requirement=requirements/uv.txt" in pip
    assert venv == "uv venv --quiet --clear --python=3.12 .venv"
    assert "--require-hashes --build-constraints=requirements/tpu.txt requirements/tpu.txt" in sync
    assert install.endswith("--no-build-isolation --no-deps --editable .")
    assert (worker.code / "old module.py").exists()
    head = git(worker.clone, "rev-parse", "HEAD")
    assert (worker.code / ".sent" / "commit").read_text() == f"{head}\n"
    assert not (worker.home / "sent.tar.gz").exists()


def test_a_second_commit_replaces_the_first_and_leaves_the_rest(worker):
    worker.set_up()
    (worker.code / "logs").mkdir()
    (worker.code / "logs" / "train.log").write_text("kept")
    (worker.clone / "old module.py").unlink()
    (worker.clone / "new.py").write_text("x = 1\n")
    commit(worker.clone)
    assert worker.set_up().returncode == 0
    assert not (worker.code / "old module.py").exists()
    assert (worker.code / "new.py").read_text() == "x = 1\n"
    assert (worker.code / "logs" / "train.log").read_text() == "kept"
    assert not any(call.startswith("uv venv") for call in worker.calls())


def test_a_folder_with_something_else_in_it_is_left_alone(worker):
    worker.code.mkdir()
    (worker.code / "mine.py").write_text("mine")
    ran = worker.set_up()
    assert ran.returncode == 2
    assert f"{worker.code} holds files that setup.sh did not put there" in ran.stderr
    assert [path.name for path in worker.code.iterdir()] == ["mine.py"]


def test_a_folder_that_is_no_environment_is_left_alone(worker):
    (worker.home / "usr" / "bin").mkdir(parents=True)
    python = str(worker.home / "usr" / "bin" / "python")
    ran = worker.set_up(python)
    assert ran.returncode == 2
    assert "usr exists and is no virtual environment" in ran.stderr
    assert not any(call.startswith("uv pip") for call in worker.calls())


def test_an_environment_of_another_python_is_made_anew(worker):
    worker.set_up()
    (worker.code / ".venv" / "bin" / "python").write_text("#!/usr/bin/env bash\nexit 1\n")
    assert worker.set_up().returncode == 0
    assert any(call.startswith("uv venv") for call in worker.calls())


def test_no_pip_says_how_to_get_it(worker):
    ran = worker.set_up(NO_PIP="true")
    assert ran.returncode == 2
    assert ran.stderr.startswith("worker-0: error: python3 has no pip")
    assert "apt-get install --yes python3-pip" in ran.stderr


@pytest.mark.parametrize("step", ["venv", "pip sync", "pip install"])
def test_a_step_that_fails_fails_the_setup(worker, step):
    ran = worker.set_up(UV_FAILS=step)
    assert ran.returncode == 1
    assert "ready" not in ran.stdout


def test_training_that_cannot_start_fails_the_setup(worker):
    assert worker.set_up(TRAIN_EXIT="3").returncode == 3


def test_a_worker_that_trains_is_left_as_it_is(worker):
    worker.set_up()
    (worker.code / "logs").mkdir()
    (worker.code / "logs" / "train.log").write_text("a line\n")
    lock = worker.code / "logs" / "train.lock"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran = worker.set_up()
    assert ran.returncode == 2
    assert "training runs in bert_jax" in ran.stderr
    assert (worker.home / "sent.tar.gz").exists()


def test_setting_up_again_after_a_failure_goes_on(worker):
    worker.set_up(UV_FAILS="pip sync")
    assert worker.set_up().returncode == 0
