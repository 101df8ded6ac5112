"""launch/check.sh: each check alone fails, with a command that mends it."""

import contextlib

import pytest

from launch.cloud import check
from launch.cloud.run import Answer, check_login
from tests.launch.scripts import make_job
from tests.launch.simulated_cloud import GOOD

FLAGS = ("--config.data.store=gs://b/r, gs://b/s", "--workdir=gs://runs/a")
# What is asked -> an answer that is a failure, the remedy, and where it is asked.
ABSENT = Answer(1, "", "(NotFound): matched no objects")
LOST = Answer(1, "", "gs://a not found: 404.")
NO_IMAGE = Answer(1, "", "(gcloud) Image not found.")  # gcloud 528, for a tag that is not there
BAD = [
    ("projects describe", ABSENT, "gcloud projects list"),
    ("services list", "storage.googleapis.com", "gcloud services enable"),
    ("managed create --help", "--size", "gcloud components update", "compute_engine"),
    ("get crd", ABSENT, "kubectl apply --server-side", "gke"),
    # JobSet 0.10 refuses the manifest: it tells failures apart by their reasons alone.
    ("get crd", "onJobFailureReasons", "kubectl apply --server-side", "gke"),
    ("images describe", NO_IMAGE, "docker push images/bert:1", "gke"),
    ("describe gs://my-", LOST, "buckets create gs://my"),
    ("describe gs://runs", LOST, "buckets create gs://runs "),
    ("buckets describe", '{"location": "EUROPE-WEST4"}', "buckets relocate gs://my-bucket"),
    ("ls gs://b/s/", ABSENT, "cp --recursive stores/s gs://b/"),
]


@pytest.fixture
def run(tmp_path, capsys):
    def run(changed, road="queued", **settings):
        job = make_job(tmp_path, road, *FLAGS, BUCKET="gs://my-bucket/bert", **settings)

        def ask(command):
            line = " ".join(command.words)
            said = next(said for key, said in (*changed.items(), *GOOD.items()) if key in line)
            return said if isinstance(said, Answer) else Answer(0, said)

        is_fine = check.run_checks(job, ask)
        return is_fine, capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("case", BAD, ids=str)
def test_each_check_alone_fails_with_its_remedy(run, case):
    key, bad, remedy, *place = case
    is_fine, (quota,) = run({}, *place)
    assert is_fine and ("--service=tpu." in quota) == (not place)
    is_fine, said = run({key: bad}, *place)
    assert (is_fine, len(said), said[0][:9], remedy in said[0]) == (False, 2, "missing: ", True)


def test_a_bucket_is_in_the_region_or_around_it(run):
    near = ('"EUROPE-WEST4"', '"EU"', '"EUR4", "location_type": "dual-region"')
    for location in (*near, '"US"', '"EUROPE-WEST1"', '""'):
        said = {"buckets describe": f'{{"location": {location}}}'}
        assert run(said, ZONE="europe-west4-b")[0] is (location in near)


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
