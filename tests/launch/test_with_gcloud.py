"""The scripts one after the other with the real gcloud, against a stand-in for Google Cloud."""

import pytest

from tests.launch.pods import TOKEN, pod_with_gcloud
from tests.launch.scripts import TRAIN_FLAGS, git, needs_gcloud
from tests.launch.tpu_api import TpuApi

pytestmark = [pytest.mark.long, needs_gcloud]

# In the place of a secret in the environment.
CANARY = "canary-4e1f"


@pytest.fixture
def cloud(tmp_path):
    with pod_with_gcloud(tmp_path, TpuApi(workers=2)) as pod:
        pod.environment |= {"MY_API_KEY": CANARY, "TRAINER": ""}
        pod.set(PROVISIONING="spot")
        yield pod


def files_with(text, folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [path for path in files if text in path.read_text(errors="replace")]
    return {str(path.relative_to(folder)) for path in found}


@pytest.mark.fault(20, "a secret in the environment and the token of gcloud, through all scripts")
def test_a_tpu_vm_is_made_set_up_trained_on_and_deleted(cloud, tmp_path):
    pod, flag = cloud, "--config.data.store=/mnt/my stores/a"
    made = pod.run("create.sh")
    method, path, asked = pod.api.requests[0]
    assert (method, path) == ("POST", "queuedResources")
    ready = pod.run("setup.sh")
    assert ready.stdout.count("ready: Python 3.12.0") == pod.api.workers
    head = git(pod.clone, "rev-parse", "HEAD")
    assert f"my-tpu has commit {head}" in ready.stdout
    assert git(pod.clone, "status", "--porcelain") == ""
    workers = [f"worker-{number}" for number in range(pod.api.workers)]
    for worker in workers:
        assert (pod.workers / worker / "bert_jax/.sent/commit").read_text() == f"{head}\n"
    trained = pod.run("train.sh", *TRAIN_FLAGS, flag, TRAIN_EXIT="86")
    assert f"launch/logs.sh {pod.cluster} --follow" in trained.stdout
    shown = pod.run("logs.sh", "--lines=2")
    said = f"trains: -u -m bert_jax.train --multihost {' '.join((*TRAIN_FLAGS, flag))}"
    lines = sorted(line for line in shown.stdout.splitlines() if "trains" in line)
    assert lines == [f"{worker}: {worker} {said}" for worker in workers]
    assert shown.stdout.count(" ended with exit code 86\n") == pod.api.workers
    gone = pod.run("delete.sh", "--yes")
    assert pod.api.requests[-1][:2] == ("DELETE", "queuedResources/my-tpu")
    assert pod.api.names == {}
    printed = "".join(ran.stdout + ran.stderr for ran in (made, ready, trained, shown, gone))
    assert asked["spot"] == {}
    (spec,) = asked["tpu"]["nodeSpec"]
    kind = (spec["node"]["acceleratorType"], spec["node"]["runtimeVersion"])
    assert (spec["nodeId"], *kind) == ("my-tpu", "v5litepod-8", "v2-alpha-tpuv5-lite")
    for secret, files in ((CANARY, set()), (TOKEN, {"token"})):
        assert secret not in printed and secret not in str(pod.api.requests)
        assert files_with(secret, tmp_path) == files
    # The search would find it: gcloud's own log has every command of the workers, word for word.
    logs = files_with(TRAIN_FLAGS[1], tmp_path)
    assert any(name.startswith("gcloud/logs/") for name in logs)


@pytest.mark.fault(18, "no right to create, to look, to delete; a name that is absent")
def test_what_google_cloud_refuses_is_said_and_nothing_is_taken_for_done(cloud):
    said = "Permission 'tpu.nodes.create' denied on 'my-project'"
    assert "my-tpu was not found" in cloud.run("delete.sh", "--yes", code=1).stderr
    cloud.api.refusals = [("POST", 403, said)]
    ran = cloud.run("create.sh", "--wait", code=1)
    assert f"PERMISSION_DENIED: {said}" in ran.stderr
    assert "Requested" not in ran.stdout
    cloud.run("create.sh")
    cloud.api.refusals = [("GET", 403, "Permission 'tpu.queuedresources.get' denied")]
    said = cloud.run("delete.sh", "--yes", code=1).stderr
    assert "may still cost money" in said and "tpu.queuedresources.get" in said
    cloud.api.refusals = [("DELETE", 403, "Permission 'tpu.queuedresources.delete' denied")]
    assert "my-tpu may still cost money" in cloud.run("delete.sh", "--yes", code=1).stdout
    assert list(cloud.api.names) == ["my-tpu"]
