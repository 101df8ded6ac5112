"""The scripts one after the other with the real gcloud, against a stand-in for Google Cloud."""

import os
import pathlib
import subprocess
import urllib.request
from urllib.parse import quote

import pytest

from tests.faults.bucket_server import NAME, denied, fake_bucket
from tests.launch.clones import git, make_clone
from tests.launch.scripts import TRAIN_FLAGS, needs_gcloud
from tests.launch.tpu_api import TpuApi, serving, write_ssh
from tests.launch.workers import make_tools

WORKERS = 3
# In the place of secrets: the token, and a variable of the environment.
CANARY = "canary-4e1f"


class Cloud:
    """A clone of bert_jax, a gcloud that is logged in by a token, and the stand-in it talks to."""

    def __init__(self, folder: pathlib.Path, cluster: str, address: str) -> None:
        self.clone = make_clone(folder / "clone")
        self.workers = folder / "workers"
        self.cluster = cluster
        (folder / "home").mkdir()
        (folder / "token").write_text(f"{CANARY}\n")
        write_ssh(folder / "ssh")
        self.environment = os.environ | {
            "HOME": str(folder / "home"),
            "PATH": f"{folder / 'ssh'}:{os.environ['PATH']}",
            "WORKERS": str(self.workers),
            "WORKER_PATH": make_tools(folder / "tools"),
            "LIBTPU_LOCK": str(folder / "libtpu_lockfile"),
            "MY_API_KEY": CANARY,
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


def files_with(text: str, folder: pathlib.Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text in path.read_text(errors="replace")
    }


@pytest.mark.long
@needs_gcloud
@pytest.mark.fault(20, "a secret in the environment and the token of gcloud, through all scripts")
def test_a_tpu_vm_is_made_set_up_trained_on_and_deleted(cloud, api, tmp_path):
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

    ran = (made, ready, trained, shown, gone)
    assert not any(CANARY in said for one in ran for said in (one.stdout, one.stderr))
    assert CANARY not in str(api.requests)
    assert files_with(CANARY, tmp_path) == {"token"}
    # The search would find it: gcloud's own log has every command of the workers, word for word.
    logs = files_with(TRAIN_FLAGS[1], tmp_path)
    assert any(name.startswith("gcloud/logs/") for name in logs)


@needs_gcloud
@pytest.mark.long
@pytest.mark.fault(18, "no right to create, to look, to delete")
def test_what_google_cloud_refuses_is_said_and_nothing_is_taken_for_done(cloud, api):
    said = "Permission 'tpu.nodes.create' denied on 'my-project'"
    api.refusals = [("POST", 403, said)]
    ran = cloud.run("create.sh", "--wait")
    assert ran.returncode == 1
    assert f"PERMISSION_DENIED: {said}" in ran.stderr
    assert "Asked for" not in ran.stdout

    assert cloud.run("create.sh").returncode == 0
    api.refusals = [("GET", 403, "Permission 'tpu.queuedresources.get' denied")]
    ran = cloud.run("delete.sh", "--yes")
    assert ran.returncode == 1
    assert "my-tpu was left alone and may still cost money" in ran.stderr
    api.refusals = [("DELETE", 403, "Permission 'tpu.queuedresources.delete' denied")]
    ran = cloud.run("delete.sh", "--yes")
    assert ran.returncode == 1
    assert "my-tpu may still cost money" in ran.stderr
    assert list(api.names) == ["my-tpu"]


@needs_gcloud
@pytest.mark.long
@pytest.mark.fault(18, "a TPU VM that is not there; one that is there already")
def test_a_name_that_is_not_there_or_there_already_is_said(cloud, api):
    for script, flags in (("setup.sh", ()), ("train.sh", TRAIN_FLAGS), ("logs.sh", ())):
        ran = cloud.run(script, *flags)
        assert ran.returncode == 1, script
        assert "my-tpu was not found" in ran.stderr
    assert cloud.run("create.sh").returncode == 0
    ran = cloud.run("create.sh")
    assert ran.returncode == 1
    assert "my-tpu exists already" in ran.stderr


@needs_gcloud
@pytest.mark.long
@pytest.mark.fault(18, "one worker that cannot be set up")
def test_a_worker_that_fails_is_named_by_its_number(cloud, api):
    assert cloud.run("create.sh").returncode == 0
    theirs = cloud.workers / "worker-1" / "bert_jax" / "mine.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    ran = cloud.run("setup.sh")
    assert ran.returncode == 2
    assert "worker-1: error: " in ran.stderr
    assert "Command execution on worker 1 failed with exit status 2" in ran.stdout + ran.stderr
    assert "has commit" not in ran.stdout
    assert theirs.read_text() == "mine"


@needs_gcloud
@pytest.mark.long
@pytest.mark.fault(18, "a TPU VM that is gone, its logs in the bucket; a bucket without the right")
def test_logs_outlive_the_tpu_vm(cluster, tmp_path):
    with fake_bucket() as bucket:
        cloud = Cloud(tmp_path, cluster(BUCKET=f"gs://{NAME}/bert"), "http://127.0.0.1:9")
        address = bucket.environment["STORAGE_EMULATOR_HOST"]
        cloud.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"] = f"{address}/storage/v1/"
        log = "bert/logs/my-tpu/t1v-n-0-w-1-20261122T020304Z.log"
        upload = f"{address}/upload/storage/v1/b/{NAME}/o?uploadType=media&name={quote(log, '')}"
        urllib.request.urlopen(upload, data=b"one\ntwo\nthree\n").close()
        shown = cloud.run("logs.sh", "--bucket", "--worker=1", "--lines=2")
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.endswith(f"gs://{NAME}/{log}\ntwo\nthree\n")

        bucket.faults = [denied("storage.objects.list", "GET")]
        refused = cloud.run("logs.sh", "--bucket")
        assert refused.returncode == 1
        assert "storage.objects.list" in refused.stderr
        assert f"gs://{NAME}/bert/logs/my-tpu could not be listed" in refused.stderr


@needs_gcloud
def test_what_is_not_there_is_not_deleted_without_a_word(cloud):
    ran = cloud.run("delete.sh", "--yes")
    assert ran.returncode == 1
    assert "my-tpu was not found" in ran.stderr
    assert "may still cost money" in ran.stderr
