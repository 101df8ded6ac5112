"""launch/worker/on_worker_setup.sh in a temporary home folder, with stand-ins for pip and uv."""

import fcntl
import shlex

import pytest

from tests.launch.scripts import LAUNCH, commit, git, run_on

pytestmark = pytest.mark.slow

SCRIPT = LAUNCH / "worker" / "on_worker_setup.sh"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "worker-0").mkdir()
    return tmp_path / "worker-0"


@pytest.fixture
def set_up(clone, home, worker_tools):
    """A function that runs the script for the present commit of the clone; gives stdout, stderr."""

    def run(python=".venv/bin/python", code=0, **environment):
        archive = home / "sent.tar.gz"
        git(clone, "archive", "--format=tar.gz", f"--output={archive}", "HEAD")
        (home / "calls.log").unlink(missing_ok=True)
        head = git(clone, "rev-parse", "HEAD")
        command = shlex.join(["bash", str(SCRIPT), archive.name, head, "bert_jax", python])
        ran = run_on(home, command, **environment)
        assert ran.returncode == code, ran
        return ran.stdout, ran.stderr

    return run


def calls(home):
    return (home / "calls.log").read_text().splitlines()


def test_a_new_worker_gets_code_uv_python_and_the_packages_in_this_order(set_up, clone, home):
    said, error = set_up()
    assert error == ""
    assert said.endswith("worker-0: ready: Python 3.12.0, jax 0\n")
    pip, venv, sync, install = (call for call in calls(home) if "--version" not in call)
    assert "--target=.uv" in pip
    assert "--require-hashes --requirement=requirements/uv.txt" in pip
    assert venv == "uv venv --quiet --clear --python=3.12 .venv"
    assert "--require-hashes --build-constraints=requirements/tpu.txt requirements/tpu.txt" in sync
    assert install.endswith("--no-build-isolation --no-deps --editable .")
    assert (home / "bert_jax" / "old module.py").exists()
    sent = (home / "bert_jax" / ".sent" / "commit").read_text()
    assert sent == git(clone, "rev-parse", "HEAD") + "\n"
    assert not (home / "sent.tar.gz").exists()


def test_a_second_commit_replaces_the_first_and_leaves_the_rest(set_up, clone, home):
    set_up()
    code = home / "bert_jax"
    (code / "logs").mkdir()
    (code / "logs" / "train.log").write_text("kept")
    (clone / "old module.py").unlink()
    (clone / "new.py").write_text("x = 1\n")
    commit(clone)
    set_up()
    assert not (code / "old module.py").exists()
    assert (code / "new.py").read_text() == "x = 1\n"
    assert (code / "logs" / "train.log").read_text() == "kept"
    assert not any(call.startswith("uv venv") for call in calls(home))
    # An environment of another Python is made anew.
    (code / ".venv" / "bin" / "python").write_text("#!/usr/bin/env bash\nexit 1\n")
    set_up()
    assert any(call.startswith("uv venv") for call in calls(home))


def test_folders_of_others_are_left_alone(set_up, home):
    (home / "bert_jax").mkdir()
    mine = home / "bert_jax" / "mine.py"
    mine.write_text("mine")
    assert f"{mine.parent} has files that setup.sh did not put there" in set_up(code=2)[1]
    assert list(mine.parent.iterdir()) == [mine]
    mine.unlink()
    (home / "usr" / "bin").mkdir(parents=True)
    said = set_up(str(home / "usr" / "bin" / "python"), code=2)[1]
    assert "usr exists and is no virtual environment" in said
    assert not any(call.startswith("uv pip") for call in calls(home))


def test_no_pip_says_how_to_get_it(set_up):
    said = set_up(NO_PIP="true", code=2)[1]
    assert said.startswith("worker-0: error: python3 has no pip")
    assert "apt-get install --yes python3-pip" in said


def test_a_step_that_fails_fails_the_setup_and_another_one_goes_on(set_up):
    for step in ("venv", "pip sync", "pip install"):
        assert "ready" not in set_up(UV_FAILS=step, code=1)[0]
    set_up(TRAIN_EXIT="3", code=3)
    set_up()


def test_a_worker_that_trains_is_left_unchanged(set_up, home):
    set_up()
    logs = home / "bert_jax" / "logs"
    logs.mkdir()
    (logs / "train.log").write_text("a line\n")
    with (logs / "train.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "training runs in bert_jax" in set_up(code=2)[1]
    assert (home / "sent.tar.gz").exists()
