"""launch/check.sh: each check alone fails, with a command that mends it."""

import contextlib

import pytest

from launch.cloud import check
from launch.cloud.cluster import Cluster
from launch.cloud.job import Job
from launch.cloud.run import Answer, check_login
from tests.launch.simulated_cloud import GOOD

FLAGS = ("--config.data.store=gs://b/r,gs://b/s", "--workdir=gs://runs/a")
# What is asked -> an answer that is a failure, the remedy, and where it is asked.
ABSENT, CE, K8S = (
    Answer(1, "", "(NotFound): matched no objects"),
    ("v6e:2x4", ""),
    ("v6e:2x4", "gke"),
)
BAD = [
    ("projects describe", ABSENT, "gcloud projects list"),
    ("services list", "storage.googleapis.com", "gcloud services enable"),
    ("managed create --help", "--size", "gcloud components update", *CE),
    ("get crd", ABSENT, "kubectl apply --server-side", *K8S),
    # JobSet 0.10 refuses the manifest: it tells failures apart by their reasons alone.
    ("get crd", "onJobFailureReasons", "kubectl apply --server-side", *K8S),
    # What gcloud 528 says of a tag that is not there.
    (
        "images describe",
        Answer(1, "", "ERROR: (gcloud) Image not found."),
        "docker push img:1",
        *K8S,
    ),
    (
        "describe gs://my-",
        Answer(1, "", "gs://my-bucket not found: 404."),
        "buckets create gs://my",
    ),
    ("describe gs://runs", Answer(1, "", "gs://runs not found: 404."), "buckets create gs://runs "),
    ("buckets describe", '{"location": "EUROPE-WEST4"}', "buckets relocate gs://my-bucket"),
    ("ls gs://b/s/", ABSENT, "cp --recursive stores/mine gs://b/"),
]


@pytest.fixture
def run(tmp_path, cluster, capsys):
    def run(changed, topology="v5e:2x4", road="", **settings):
        cluster(
            BUCKET="gs://my-bucket/bert",
            TOPOLOGY=topology,
            ROAD=road,
            GKE_IMAGE="img:1",
            **settings,
        )

        def ask(command):
            line = " ".join(command.words)
            said = next(said for key, said in (*changed.items(), *GOOD.items()) if key in line)
            return said if isinstance(said, Answer) else Answer(0, said)

        is_fine = check.run_checks(Job(Cluster(tmp_path / "cluster.env", {}), FLAGS), ask)
        return is_fine, capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("case", BAD, ids=str)
def test_each_check_alone_fails_with_its_remedy(run, case):
    key, bad, remedy, *place = case
    assert run({}, *place)[0]
    is_fine, said = run({key: bad}, *place)
    assert (is_fine, len(said), said[0][:9], remedy in said[0]) == (False, 2, "missing: ", True)


@pytest.mark.parametrize(
    ("location", "is_fine"),
    [
        *(('"EUROPE-WEST4"', True), ('"EU"', True), ('"US"', False), ('"EUROPE-WEST1"', False)),
        *(('"EUR4", "location_type": "dual-region"', True), ('""', False)),
    ],
)
def test_a_bucket_is_in_the_region_or_around_it(run, location, is_fine):
    said = {"buckets describe": f'{{"location": {location}}}'}
    assert run(said, ZONE="europe-west4-b")[0] is is_fine


def test_a_file_with_a_token_is_a_login(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    for told, is_login in (("", False), ("/tmp/token", True)):
        answers = {"auth/access_token_file": Answer(0, told)}
        ask = lambda command, a=answers: a.get(command.words[-1], Answer(0))  # noqa: E731
        monkeypatch.setattr("launch.cloud.run.ask", ask)
        with contextlib.nullcontext() if is_login else pytest.raises(SystemExit):
            check_login()


def test_a_check_that_cannot_be_made_is_a_note(run):
    is_fine, said = run({"buckets describe": Answer(1, "", "ERROR: PERMISSION_DENIED: no \x1b[2J")})
    assert is_fine and said[0].startswith("not known: gs://my-bucket in us-central2 (PERM")
    assert "\x1b" not in said[0] and said[-1].startswith("not known: quota; gcloud beta quotas")
