"""The manifest of ROAD=gke against JobSet's published schema, and its webhook's rules on names."""

import gzip
import json
import re

import jsonschema
import pytest

from data_pipeline.cli.main import BAD_NUMBERS, REFUSED
from launch.cloud import gke
from tests.launch.conftest import GOLDEN
from tests.launch.scripts import make_job

# v0.12.0, commit and license in the file; tests/golden/jobset_crd.py wrote it.
CRD = json.loads(gzip.decompress((GOLDEN / "jobset_crd.json.gz").read_bytes()))["schema"]
FULL = {"PROVISIONING": "spot", "COORDINATOR_PORT": "8476", "GKE_SERVICE_ACCOUNT": "trainer"}


def forbid_unknown(schema):
    """Return a schema without unknown fields, which Kubernetes refuses in a strict validation."""
    if isinstance(schema, list):
        return [forbid_unknown(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return closed | {name: forbid_unknown(value) for name, value in schema.items()}


SCHEMA = jsonschema.Draft4Validator(forbid_unknown(CRD))


@pytest.fixture
def make(tmp_path):
    settings = {"TOPOLOGY": "v5e:8x8", "PROVISIONING": "standard"}
    return lambda **changed: gke.make_manifest(make_job(tmp_path, "gke", **settings | changed))


@pytest.mark.parametrize("settings", [{}, FULL, {"PROVISIONING": "flex_start"}])
def test_it_fits_the_published_schema(make, settings):
    SCHEMA.validate(make(**settings))


def test_a_misspelling_and_a_wrong_type_are_found(make):
    manifest = make()
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["paralelism"] = 4
    spec["template"]["spec"]["nodeSelector"]["a"] = 7
    found = " ".join(error.message for error in SCHEMA.iter_errors(manifest))
    assert "'paralelism' was unexpected" in found and "7 is not of type 'string'" in found


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
    assert codes["onExitCodes"]["values"] == [REFUSED, BAD_NUMBERS]
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
