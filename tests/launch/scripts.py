"""Run the scripts of launch/ as a user does, also from a small clone of bert_jax or on a worker."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from launch.cloud.cluster import Cluster
from launch.cloud.job import Job

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"
VALUES = {
    "PROJECT": "my-project",
    "ZONE": "us-central2-b",
    "TPU_NAME": "my-tpu",
    "TOPOLOGY": "v5e:2x4",
}
JOB = {"BUCKET": "gs://my-bucket", "GKE_IMAGE": "images/bert:1", "PROVISIONING": "spot"}
TRAIN_FLAGS = ("--config=configs/base.py", "--workdir=/mnt/runs/base")
UV = pathlib.Path(sys.executable).with_name("uv")
needs_uv = pytest.mark.skipif(not UV.exists(), reason="needs uv")
needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs gcloud")


def call(words: list[str], **options) -> subprocess.CompletedProcess[str]:
    """Run a command away from any terminal."""
    pipes = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    return subprocess.run(words, **pipes, timeout=500, **options)


def run_on(home: pathlib.Path, command: str, **environment: str):
    """Run a command as ssh does on a worker: by bash, in its home folder."""
    around = os.environ | {"HOME": str(home), "HOSTNAME": home.name} | environment
    return call(["bash", "-c", command], cwd=home, env=around)


def wait_for(holds: Callable[[], object], secs: float = 20) -> None:
    deadline = time.monotonic() + secs
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    stat = pathlib.Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def write_command(path: pathlib.Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Background jobs of a shell ignore SIGQUIT; Python can handle it then, Bash cannot.
    shebang = "#!/usr/bin/env -S --default-signal=QUIT bash"
    path.write_text("\n".join([shebang, *lines, ""]))
    path.chmod(0o755)


def write_cluster(path: pathlib.Path, **changed: str) -> str:
    """Write a cluster.env, complete except for `changed`; return the option that names it."""
    path.write_text("".join(f"{name}={value}\n" for name, value in (VALUES | changed).items()))
    return f"--cluster={path}"


def make_job(folder: pathlib.Path, road: str, *flags: str, **settings: str) -> Job:
    """Make a job of two machines on a road."""
    topology = "v5e:2x4" if road == "queued" else "v6e:2x4"
    write_cluster(folder / "cluster.env", **{"TOPOLOGY": topology} | JOB | settings, ROAD=road)
    own = ("--config=configs/base.py", "--workdir=gs://b/a")
    return Job(Cluster(folder / "cluster.env", {}), flags or own, "a" * 40)


def git(folder: pathlib.Path, *arguments: str) -> str:
    identity = "-c user.name=a -c user.email=a@example.com -c init.defaultBranch=main"
    command = ["git", "-C", str(folder), *identity.split(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def make_clone(folder: pathlib.Path) -> pathlib.Path:
    """Commit the scripts and what they send as they are now, and a file to be removed later."""
    for name in ("launch", "requirements"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(LAUNCH.parent / name, folder / name, ignore=ignored)
    prices = pathlib.Path("bert_jax", "planning", "prices.json")
    (folder / prices).parent.mkdir(parents=True)
    shutil.copy(LAUNCH.parent / prices, folder / prices)
    shutil.copy(LAUNCH.parent / ".gitattributes", folder)
    (folder / ".gitignore").write_text("build/\n")
    (folder / "old module.py").touch()
    git(folder, "init", "--quiet")
    return commit(folder)


def commit(folder: pathlib.Path) -> pathlib.Path:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=a")
    return folder
