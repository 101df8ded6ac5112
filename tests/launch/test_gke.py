"""launch/gke: the manifests, against what JobSet, Kubernetes and xpk know."""

import json
import os
import shutil
import subprocess

import pytest
import yaml

from bert_jax.runtime import exit_codes
from tests.launch.scripts import IMAGE, commands, run

pytestmark = pytest.mark.slow

FLAGS = ("--config=configs/base.py", "--workdir=gs://my-bucket/base")
# Type -> accelerator, topology and hosts of four chips each, as xpk 1.16.0 has them.
MACHINES = {
    "v5litepod-16": ("tpu-v5-lite-podslice", "4x4", 4),
    "v5litepod-64": ("tpu-v5-lite-podslice", "8x8", 16),
    "v6e-16": ("tpu-v6e-slice", "4x4", 4),
    "v6e-64": ("tpu-v6e-slice", "8x8", 16),
    "v4-32": ("tpu-v4-podslice", "2x2x4", 4),
    "v4-128": ("tpu-v4-podslice", "4x4x4", 16),
    "v5p-32": ("tpu-v5p-slice", "2x2x4", 4),
    "v5p-128": ("tpu-v5p-slice", "4x4x4", 16),
}
# Fields of kubernetes-sigs/jobset api/jobset/v1alpha2/jobset_types.go that a manifest may have.
KNOWN = {
    "": "apiVersion kind metadata spec",
    "spec": "replicatedJobs network successPolicy failurePolicy startupPolicy suspend coordinator "
    "managedBy ttlSecondsAfterFinished volumeClaimPolicies",
    "network": "enableDNSHostnames subdomain publishNotReadyAddresses",
    "failurePolicy": "maxRestarts rules restartStrategy",
    "rule": "name action onJobFailureReasons onJobFailureMessagePatterns targetReplicatedJobs",
    "job": "name groupName template replicas dependsOn",
}
needs_xpk = pytest.mark.skipif(shutil.which("xpk") is None, reason="needs xpk")


def manifest(cluster: str, *flags: str) -> dict:
    ran = run("gke/jobset.sh", cluster, *(flags or FLAGS))
    assert (ran.returncode, ran.stderr) == (0, "")
    return yaml.safe_load(ran.stdout)


def job(jobset: dict) -> dict:
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def check_machine(jobset: dict, kind: str) -> dict:
    """Check the slice that a manifest asks for; return the container."""
    accelerator, topology, hosts = MACHINES[kind]
    pod = job(jobset)["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == accelerator
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    assert job(jobset)["parallelism"] == job(jobset)["completions"] == hosts
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    return container


@pytest.mark.parametrize("kind", MACHINES)
def test_each_slice_has_its_nodes(cluster, kind):
    container = check_machine(manifest(cluster(ACCELERATOR_TYPE=kind, **IMAGE)), kind)
    assert container["resources"]["requests"] == {"google.com/tpu": 4}


def test_it_has_only_fields_that_jobset_knows(cluster):
    made = manifest(cluster(SPOT="true", GKE_SERVICE_ACCOUNT="trainer", **IMAGE))
    spec = made["spec"]
    parts = {"": made, "spec": spec, "network": spec["network"]}
    parts |= {"failurePolicy": spec["failurePolicy"], "job": spec["replicatedJobs"][0]}
    parts["rule"] = spec["failurePolicy"]["rules"][0]
    for name, known in KNOWN.items():
        assert set(parts[name]) <= set(known.split())
    assert (made["apiVersion"], made["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")


def test_codes_that_would_come_again_end_it_and_others_start_it_anew(cluster):
    made = manifest(cluster(**IMAGE), "--max_restarts=7", *FLAGS)
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 7
    (rule,) = made["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    (policy,) = job(made)["podFailurePolicy"]["rules"]
    final = sorted(set(exit_codes.FINAL) - {exit_codes.DONE})
    assert policy["onExitCodes"] == {"containerName": "train", "operator": "In", "values": final}
    assert policy["action"] == "FailJob"
    # One pod that fails is enough; Kubernetes takes a policy only for pods that end for good.
    assert job(made)["backoffLimit"] == 0
    assert job(made)["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.skipif(shutil.which("kubernetes-validate") is None, reason="needs kubernetes-validate")
@pytest.mark.parametrize("broken", [{}, {"paralelism": 4}])
def test_the_job_in_it_fits_the_schema_of_kubernetes(cluster, tmp_path, broken):
    spec = job(manifest(cluster(SPOT="true", GKE_SERVICE_ACCOUNT="trainer", **IMAGE))) | broken
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(made))
    command = ["kubernetes-validate", "--strict", str(tmp_path / "job.yaml")]
    ran = subprocess.run(command, capture_output=True)
    assert (ran.returncode != 0) is bool(broken), ran.stdout


def ask_xpk(command: list[str], folder) -> subprocess.CompletedProcess[str]:
    """Let xpk write the manifest that it would send to the cluster; it asks no server."""
    path = folder / "manifest.yaml"
    return subprocess.run(
        [*command, "--dry-run", "--skip-validation", f"--output-manifest-file={path}"],
        capture_output=True,
        text=True,
        env=os.environ | {"HOME": str(folder)},
    )


@needs_xpk
@pytest.mark.parametrize("kind", ["v5litepod-16", "v5p-128"])
def test_xpk_makes_the_same_slice_of_it(cluster, tmp_path, kind):
    option = cluster(ACCELERATOR_TYPE=kind, SPOT="true", **IMAGE)
    (command,) = commands("gke/xpk.sh", option, *FLAGS, "--x=it's a")
    ran = ask_xpk(command, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    made = yaml.safe_load((tmp_path / "manifest.yaml").read_text())
    container = check_machine(made, kind)
    line = command[-2].removeprefix("--command=")
    assert f"({line}) & PID=$!" in container["command"][-1]
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 100
    (rule,) = job(made)["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    anew = set(rule["onExitCodes"]["values"])
    assert {exit_codes.FAILED, exit_codes.STUCK, 128 + 2, 128 + 6, 128 + 9, 128 + 15} <= anew
    assert not anew & set(exit_codes.FINAL)
    refused = ask_xpk([*command, "--tpu-kind=v4"], tmp_path)
    assert "unrecognized arguments: --tpu-kind" in refused.stdout + refused.stderr
