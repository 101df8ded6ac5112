"""launch/worker/on_worker_setup.sh in a temporary home folder, with stand-ins for pip and uv.

Without internet, packages come from a folder that stands for the bucket, by the real uv.
"""

import fcntl
import hashlib
import os
import pathlib
import shlex
import shutil
import sys
import zipfile

import pytest

from tests.launch.scripts import UV, commit, git, needs_uv, run_on

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path("launch", "worker", "on_worker_setup.sh")
HOUSE = "gs://my-bucket/house"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "worker-0").mkdir()
    return tmp_path / "worker-0"


@pytest.fixture
def set_up(clone, home, worker_tools):
    """A function that runs the script for the present commit of the clone; gives stdout, stderr."""

    def run(python=".venv/bin/python", *house, code=0, **environment):
        archive = home / "sent.tar.gz"
        git(clone, "archive", "--format=tar.gz", f"--output={archive}", "HEAD")
        (home / "calls.log").unlink(missing_ok=True)
        head = git(clone, "rev-parse", "HEAD")
        words = ["bash", str(clone / SCRIPT), archive.name, head, "bert_jax", python, *house]
        ran = run_on(home, shlex.join(words), **environment)
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


def write_wheel(folder: pathlib.Path, name: str, file: str, text: str) -> str:
    """Write NAME-1 as a wheel of one file; gives its line of requirements, with its hash."""
    info = f"{name}-1.dist-info"
    files = {
        file: text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{inside},,\n" for inside in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, content in files.items():
            wheel.writestr(inside, content)
    return f"{name}==1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def give_the_clone_what_installs(clone):
    """This test's own Python stands for 3.12, a backend that builds nothing for setuptools."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    script = clone / SCRIPT
    script.write_text(script.read_text().replace("VERSION=3.12", f"VERSION={version}"))
    write_wheel(clone / "built", "bert_jax", "bert_jax/train.py", "import jax\n")
    (clone / "backend.py").write_text(
        "import shutil\n\n\ndef build_editable(folder, *_):\n"
        "    shutil.copy('built/bert_jax-1-py3-none-any.whl', folder)\n"
        "    return 'bert_jax-1-py3-none-any.whl'\n"
    )
    (clone / "pyproject.toml").write_text(
        "[project]\nname = 'bert_jax'\nversion = '1'\n"
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    commit(clone)


@needs_uv
def test_a_worker_without_internet_installs_from_the_bucket(
    set_up, clone, home, bucket, worker_tools, tmp_path
):
    wheels = bucket / "my-bucket" / "house" / "wheels"
    jax = write_wheel(wheels, "jax", "jax.py", "__version__ = '1 from the bucket'\n")
    (clone / "requirements" / "tpu.txt").write_text(jax)
    give_the_clone_what_installs(clone)
    around = {"REAL_UV": str(UV), "UV_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": ""}
    around["PATH"] = f"{worker_tools}:{sys.base_prefix}/bin:{os.environ['PATH']}"
    said, _ = set_up(".venv/bin/python", HOUSE, **around)
    assert said.endswith(", jax 1 from the bucket\n")
    assert any("--no-index --find-links=" in call for call in calls(home))

    # One other byte in a package, under the same name, is not installed.
    write_wheel(wheels, "jax", "jax.py", "__version__ = '1 from elsewhere'\n")
    shutil.rmtree(home / "bert_jax" / ".venv")
    shutil.rmtree(tmp_path / "cache")
    _, error = set_up(".venv/bin/python", HOUSE, code=1, **around)
    assert "Hash mismatch" in error
    assert "worker-0: error: setup failed at: .uv/bin/uv pip sync" in error

    _, error = set_up(".venv/bin/python", "gs://my-bucket/absent", code=2, **around)
    assert "worker-0: error: gs://my-bucket/absent could not be fetched" in error
    assert "gs://my-bucket/absent is not there" in error
