"""The scripts one after the other with the real gcloud, against a stand-in for Google Cloud."""

import os
import pathlib
import subprocess

import pytest

from tests.launch.clones import git, make_clone
from tests.launch.scripts import TRAIN_FLAGS, needs_gcloud
from tests.launch.tpu_api import TpuApi, serving, write_ssh
from tests.launch.workers import make_tools

WORKERS = 3


class Cloud:
    """A clone of bert_jax, a gcloud that is logged in by a token, and the stand-in it talks to."""

    def __init__(self, folder: pathlib.Path, cluster: str, address: str) -> None:
        self.clone = make_clone(folder / "clone")
        self.workers = folder / "workers"
        self.cluster = cluster
        (folder / "home").mkdir()
        (folder / "token").write_text("a token\n")
        write_ssh(folder / "ssh")
        self.environment = os.environ | {
            "HOME": str(folder / "home"),
            "PATH": f"{folder / 'ssh'}:{os.environ['PATH']}",
            "WORKERS": str(self.workers),
            "WORKER_PATH": make_tools(folder / "tools"),
            "LIBTPU_LOCK": str(folder / "libtpu_lockfile"),
            "CLOUDSDK_CONFIG": str(folder / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{address}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{address}/compute/v1/",
        }

    def run(self, script: str, *arguments: str, **environment: str):
        return subprocess.run(
            ["bash", str(self.clone / "launch" / script), self.cluster, *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.environment | environment,
            timeout=100,
        )


@pytest.fixture
def api():
    return TpuApi(WORKERS)


@pytest.fixture
def cloud(tmp_path, cluster, api):
    with serving(api) as address:
        yield Cloud(tmp_path, cluster(SPOT="true"), address)


@needs_gcloud
def test_a_tpu_vm_is_made_set_up_trained_on_and_deleted(cloud, api):
    made = cloud.run("create.sh")
    assert made.returncode == 0, made.stderr
    method, path, asked = api.requests[0]
    assert (method, path) == ("POST", "queuedResources")
    assert asked["spot"] == {}
    (spec,) = asked["tpu"]["nodeSpec"]
    assert spec["nodeId"] == "my-tpu"
    assert spec["node"]["acceleratorType"] == "v5litepod-16"
    assert spec["node"]["runtimeVersion"] == "v2-alpha-tpuv5-lite"

    ready = cloud.run("setup.sh")
    assert ready.returncode == 0, ready.stderr
    assert ready.stdout.count("ready: Python 3.12.0") == WORKERS
    head = git(cloud.clone, "rev-parse", "HEAD")
    for number in range(WORKERS):
        sent = cloud.workers / f"worker-{number}" / "bert_jax" / ".sent" / "commit"
        assert sent.read_text() == f"{head}\n"

    flag = "--config.data.store=/mnt/my stores/a"
    trained = cloud.run("train.sh", *TRAIN_FLAGS, flag, TRAIN_EXIT="86")
    assert trained.returncode == 0, trained.stderr
    shown = cloud.run("logs.sh", "--lines=2")
    said = f"trains: -u -m bert_jax.train --multihost {' '.join(TRAIN_FLAGS)} {flag}"
    lines = sorted(line for line in shown.stdout.splitlines() if "trains" in line)
    assert lines == [f"worker-{number}: worker-{number} {said}" for number in range(WORKERS)]
    assert shown.stdout.count(" ended with exit code 86\n") == WORKERS

    gone = cloud.run("delete.sh", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert api.requests[-1][:2] == ("DELETE", "queuedResources/my-tpu")
    assert api.names == {}


@needs_gcloud
def test_what_is_not_there_is_not_deleted_without_a_word(cloud):
    ran = cloud.run("delete.sh", "--yes")
    assert ran.returncode == 1
    assert "my-tpu was not found" in ran.stderr
    assert "may still cost money" in ran.stderr
