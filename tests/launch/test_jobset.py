"""The manifest of ROAD=gke against JobSet's published schema, and its webhook's rules on names."""

import gzip
import json
import pathlib
import re

import pytest

from bert_jax.runtime import exit_codes
from launch.cloud import gke
from launch.cloud.cluster import Cluster
from launch.cloud.job import Job
from tests.launch.scripts import LAUNCH

# v0.12.0, commit and license in the file; tests/golden/jobset_crd.py wrote it.
CRD = pathlib.Path(__file__).parents[1] / "golden" / "jobset_crd.json.gz"
SCHEMA = json.loads(gzip.decompress(CRD.read_bytes()))["schema"]
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
FULL = {"PROVISIONING": "spot", "COORDINATOR_PORT": "8476", "GKE_SERVICE_ACCOUNT": "trainer"}


def list_errors(value, schema, path="") -> list[str]:
    """What a structural schema of Kubernetes refuses: types, enums, lengths, unknown fields."""
    if schema.get("x-kubernetes-int-or-string"):
        return []
    wanted = TYPES[schema["type"]]
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        return [f"{path} is no {schema['type']}"]
    errors = [f"{path} is {value}"] * ("enum" in schema and value not in schema["enum"])
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        errors.append(f"{path} is long")
    if wanted is list:
        errors += [f"{path} is long"] * (len(value) > schema.get("maxItems", len(value)))
        for number, item in enumerate(value):
            errors += list_errors(item, schema["items"], f"{path}[{number}]")
    if wanted is dict and "properties" in schema:
        missing = set(schema.get("required", ())) - set(value)
        errors += [f"{path}.{name} is missing" for name in missing]
        for name, item in value.items():
            known, inner = schema["properties"].get(name), f"{path}.{name}"
            errors += list_errors(item, known, inner) if known else [f"{inner} is unknown"]
    elif wanted is dict and isinstance(schema.get("additionalProperties"), dict):
        for name, item in value.items():
            errors += list_errors(item, schema["additionalProperties"], f"{path}.{name}")
    return errors


def check(manifest) -> list[str]:
    """`metadata` is checked by Kubernetes itself, and free in a schema."""
    return list_errors({k: v for k, v in manifest.items() if k != "metadata"}, SCHEMA)


@pytest.fixture
def make(cluster):
    def make(**changed):
        settings = {"GKE_IMAGE": "images/bert:1", "TOPOLOGY": "v5e:8x8", "ROAD": "gke"} | changed
        path = pathlib.Path(cluster(**settings).partition("=")[2])
        return gke.make_manifest(Job(Cluster(path, {}), ("--workdir=gs://b/a",)))

    return make


@pytest.mark.parametrize("settings", [{}, FULL, {"PROVISIONING": "flex_start"}])
def test_it_fits_the_published_schema(make, settings):
    assert check(make(**settings)) == []


def test_a_pod_has_the_user_of_the_image_and_no_privileges(make):
    pod = make()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    *_, user = re.findall(r"^USER (\d+):(\d+)$", (LAUNCH / "Dockerfile").read_text(), re.MULTILINE)
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == tuple(map(int, user)) != (0, 0)
    assert context["runAsNonRoot"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False}


# Labels and taints of node pools that GKE creates with --spot and --flex-start.
@pytest.mark.parametrize(("model", "key"), [("spot", "spot"), ("flex_start", "flex-start")])
def test_a_provisioning_model_selects_and_tolerates_its_node_pools(make, model, key):
    (job,) = make(PROVISIONING=model)["spec"]["replicatedJobs"]
    pod, label = job["template"]["spec"]["template"]["spec"], f"cloud.google.com/gke-{key}"
    assert pod["nodeSelector"][label] == "true"
    assert {"key": label, "operator": "Exists"} in pod["tolerations"]


def test_a_misspelling_and_a_wrong_type_are_found(make):
    manifest = make()
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["paralelism"] = 4
    spec["template"]["spec"]["nodeSelector"]["a"] = 7
    del manifest["spec"]["failurePolicy"]["rules"][0]["name"]
    manifest["spec"]["failurePolicy"]["rules"][1]["action"] = "Restart"
    found = " ".join(check(manifest))
    for words in ("paralelism is unknown", "nodeSelector.a is no string", "name is missing"):
        assert words in found
    assert "is Restart" in found


# What Kubernetes' Job controller writes, as jobset's keps/262-ConfigurableFailurePolicy shows.
CODE = "Container train for pod a/b failed with exit code 2 matching FailJob rule at index 0"
DISRUPTION = "Pod a/b has condition DisruptionTarget matching FailJob rule at index 1"
MESSAGES = {
    CODE: ["FailJobSet"],
    DISRUPTION: ["RestartJobSetAndIgnoreMaxRestarts"],
    "Job has reached the specified backoff limit": [],
}


def test_final_codes_end_it_preemptions_cost_no_restart_and_others_do(make):
    manifest = make()
    policy = manifest["spec"]["failurePolicy"]
    for message, action in MESSAGES.items():
        is_match = lambda rule, m=message: re.search(rule["onJobFailureMessagePatterns"][0], m)  # noqa: E731
        assert [rule["action"] for rule in policy["rules"] if is_match(rule)] == action
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    codes, disruption = job["podFailurePolicy"]["rules"]
    assert codes["onExitCodes"]["values"] == [exit_codes.REFUSED, exit_codes.BAD_NUMBERS]
    assert disruption["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    # Kubernetes takes a policy only for pods that end for good.
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_names_are_what_the_webhook_takes(make):
    manifest = make(TPU_NAME="a" * 46)
    (job,) = manifest["spec"]["replicatedJobs"]
    assert len(f"{manifest['metadata']['name']}-{job['name']}-0-15-abcde") == 63
    with pytest.raises(SystemExit, match="2"):
        make(TPU_NAME="a" * 47)
    for rule in manifest["spec"]["failurePolicy"]["rules"]:
        assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
