"""launch/check.sh: each check alone fails, with a command that mends it."""

import pytest

from launch.cloud import check
from launch.cloud.cluster import Cluster
from launch.cloud.job import Job
from launch.cloud.run import Answer

GOOD = {
    "auth list": "me",
    "config get": "",
    "projects describe": "my-project",
    "services list": "tpu.googleapis.com\ncompute.googleapis.com\ncontainer.googleapis.com",
    "managed create": "--target-size-policy-mode",
    "get crd": "jobsets",
    "buckets describe": '{"location": "US-CENTRAL2"}',
    "storage ls": "gs://b/s/manifest.json",
}
FLAGS = ("--config.data.store=gs://b/s",)
# What is asked -> an answer that is a failure, and the remedy.
BAD = {
    "auth list": ("", "gcloud auth login"),
    "projects describe": (Answer(1, "", "NOT_FOUND"), "gcloud projects list"),
    "services list": ("storage.googleapis.com", "gcloud services enable"),
    "managed create": ("--size", "gcloud components update"),
    "get crd": (Answer(1, "", "Error (NotFound): crd not found"), "kubectl apply --server-side"),
    "buckets describe": ('{"location": "EUROPE-WEST4"}', "buckets create gs://my-bucket"),
    "storage ls": (Answer(1, "", "matched no objects"), "cp --recursive stores/mine gs://b/"),
}
PLACES = {"managed create": ("v6e:2x4", ""), "get crd": ("v6e:2x4", "gke")}


@pytest.fixture
def run(tmp_path, cluster, capsys):
    def run(changed, topology="v5e:2x4", road=""):
        cluster(BUCKET="gs://my-bucket/bert", TOPOLOGY=topology, ROAD=road)
        answers = GOOD | changed

        def ask(command):
            said = next(said for key, said in answers.items() if key in " ".join(command.words))
            return said if isinstance(said, Answer) else Answer(0, said)

        is_fine = check.run_checks(Job(Cluster(tmp_path / "cluster.env", {}), FLAGS), ask)
        return is_fine, capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("key", BAD)
def test_each_check_alone_fails_with_its_remedy(run, key):
    place, (bad, remedy) = PLACES.get(key, ("v5e:2x4", "")), BAD[key]
    assert run({}, *place)[0]
    is_fine, said = run({key: bad}, *place)
    assert (is_fine, len(said)) == (False, 2)
    assert said[0].startswith("missing: ") and remedy in said[0]


def test_a_file_with_a_token_is_a_login(run):
    assert run({"auth list": "", "config get": "/tmp/token"})[0]


def test_a_check_that_cannot_be_made_is_a_note(run):
    is_fine, said = run({"buckets describe": Answer(1, "", "ERROR: PERMISSION_DENIED: no \x1b[2J")})
    assert is_fine and said[0].startswith("not known: gs://my-bucket in us-central2 (PERM")
    assert "\x1b" not in said[0] and said[1].startswith("not known: quota; gcloud beta quotas")
