"""launch/gke/jobset.sh: the manifest, against the fields that JobSet and Kubernetes know."""

import json
import shutil
import subprocess

import pytest
import yaml

from bert_jax import exit_codes
from tests.launch.scripts import refusal, run

FLAGS = ("--config=configs/base.py", "--workdir=gs://my-bucket/base")
IMAGE = {"GKE_CLUSTER": "my-cluster", "GKE_IMAGE": "us-docker.pkg.dev/my-project/images/bert:1"}
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
JOBSET = {"apiVersion", "kind", "metadata", "spec"}
SPEC = {
    *("replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy", "suspend"),
    *("coordinator", "managedBy", "ttlSecondsAfterFinished", "volumeClaimPolicies"),
}
NETWORK = {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"}
FAILURE_POLICY = {"maxRestarts", "rules", "restartStrategy"}
RULE = {
    "name",
    "action",
    "onJobFailureReasons",
    "onJobFailureMessagePatterns",
    "targetReplicatedJobs",
}
REPLICATED_JOB = {"name", "groupName", "template", "replicas", "dependsOn"}


def manifest(cluster: str, *flags: str) -> dict:
    ran = run("gke/jobset.sh", cluster, *(flags or FLAGS))
    assert (ran.returncode, ran.stderr) == (0, "")
    return yaml.safe_load(ran.stdout)


def job(jobset: dict) -> dict:
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def pod(jobset: dict) -> dict:
    return job(jobset)["template"]["spec"]


@pytest.mark.parametrize("kind", MACHINES)
def test_each_slice_has_its_nodes(cluster, kind):
    accelerator, topology, hosts = MACHINES[kind]
    made = manifest(cluster(ACCELERATOR_TYPE=kind, **IMAGE))
    assert pod(made)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert job(made)["parallelism"] == job(made)["completions"] == hosts
    (container,) = pod(made)["containers"]
    assert container["resources"] == {
        "requests": {"google.com/tpu": 4},
        "limits": {"google.com/tpu": 4},
    }


@pytest.mark.parametrize("kind", ["v2-32", "v3-128", "v5litepod-8", "v4-8", "v6e-17"])
def test_a_slice_that_is_not_in_the_table_is_refused(cluster, kind):
    said = refusal("gke/jobset.sh", cluster(ACCELERATOR_TYPE=kind, **IMAGE), *FLAGS)
    assert f"ACCELERATOR_TYPE is '{kind}'" in said


def test_it_has_only_fields_that_jobset_knows(cluster):
    made = manifest(cluster(SPOT="true", GKE_SERVICE_ACCOUNT="trainer", **IMAGE))
    spec = made["spec"]
    (rule,) = spec["failurePolicy"]["rules"]
    (replicated,) = spec["replicatedJobs"]
    assert (made["apiVersion"], made["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    for part, known in (
        (made, JOBSET),
        (spec, SPEC),
        (spec["network"], NETWORK),
        (spec["failurePolicy"], FAILURE_POLICY),
        (rule, RULE),
        (replicated, REPLICATED_JOB),
    ):
        assert set(part) <= known
    assert spec["network"]["enableDNSHostnames"] is True
    assert spec["failurePolicy"]["maxRestarts"] == 100
    assert made["metadata"]["labels"] == {"launched_by": "bert_jax"}


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
    assert pod(made)["restartPolicy"] == "Never"


def test_settings_reach_the_pods(cluster):
    option = cluster(
        SPOT="true", COORDINATOR_PORT="8476", GKE_SERVICE_ACCOUNT="trainer", LABEL="anna", **IMAGE
    )
    made = manifest(option)
    assert pod(made)["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod(made)["serviceAccountName"] == "trainer"
    (container,) = pod(made)["containers"]
    assert container["env"] == [{"name": "JAX_COORDINATOR_PORT", "value": "8476"}]
    assert container["image"] == IMAGE["GKE_IMAGE"]


@pytest.mark.parametrize("flag", ["--x=a 'b' \"c\\d\": # {}", "--config.phases[0].steps=5"])
def test_a_flag_reaches_the_training_as_it_was_given(cluster, flag):
    (container,) = pod(manifest(cluster(**IMAGE), *FLAGS, flag))["containers"]
    assert container["command"] == [
        *("python", "-u", "-m", "bert_jax.train", "--multihost", *FLAGS, flag)
    ]


def test_kubernetes_puts_nothing_of_its_own_in_the_place_of_a_dollar(cluster):
    (container,) = pod(manifest(cluster(**IMAGE), *FLAGS, "--x=$(HOME)"))["containers"]
    assert container["command"][-1] == "--x=$$(HOME)"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (FLAGS[:1], "--workdir=gs://BUCKET/FOLDER is missing"),
        ((FLAGS[0], "--workdir=/mnt/base"), "--workdir=gs://BUCKET/FOLDER is missing"),
        (FLAGS[1:], "--config=FILE is missing"),
        ((*FLAGS, "--x=a\nkind: Pod"), "holds a line break"),
        ((*FLAGS, "--max_restarts=-1"), "--max_restarts=-1"),
    ],
)
def test_flags_that_cannot_be_are_refused(cluster, flags, said):
    assert said in refusal("gke/jobset.sh", cluster(**IMAGE), *flags)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GKE_IMAGE", "my image"),
        ("GKE_IMAGE", "a:1\ncommand: x"),
        ("GKE_IMAGE", ""),
        ("GKE_SERVICE_ACCOUNT", "Trainer"),
        ("TPU_NAME", "a" * 41),
    ],
)
def test_odd_names_are_refused(cluster, name, value):
    said = refusal("gke/jobset.sh", cluster(**IMAGE | {name: value}), *FLAGS)
    assert name in said or "is not NAME=VALUE" in said


@pytest.mark.skipif(shutil.which("kubernetes-validate") is None, reason="needs kubernetes-validate")
@pytest.mark.parametrize(("broken", "accepted"), [(False, True), (True, False)])
def test_the_job_in_it_fits_the_schema_of_kubernetes(cluster, tmp_path, broken, accepted):
    made = manifest(cluster(SPOT="true", GKE_SERVICE_ACCOUNT="trainer", **IMAGE))
    spec = job(made) | ({"paralelism": 4} if broken else {})
    path = tmp_path / "job.yaml"
    path.write_text(
        json.dumps(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}
        )
    )
    ran = subprocess.run(["kubernetes-validate", "--strict", str(path)], capture_output=True)
    assert (ran.returncode == 0) is accepted, ran.stdout
