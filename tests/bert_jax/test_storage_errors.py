"""What disks and buckets refuse, as each library says it and as we do."""

import errno
import os

import pytest

from bert_jax.storage_errors import explained
from data_pipeline.passing import is_late

ACCOUNT = "trainer@project.iam.gserviceaccount.com"
FORBIDDEN = f"""Forbidden: https://storage.googleapis.com/upload/storage/v1/b/runs/o
{ACCOUNT} does not have storage.objects.create access to the Google Cloud Storage object."""
OF_TENSORSTORE = (
    'RESOURCE_EXHAUSTED: Error writing "params/.zarray" in OCDBT database at local file "/w/3/": '
    "Failed to write to file [OS error 28: ENOSPC No space left on device]"
)


class HttpError(Exception):
    """Like gcsfs's, which has no base but Exception."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message}, {code}")
        self.code = code


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ValueError(OF_TENSORSTORE)]
)
def test_a_full_disk_is_called_so_with_its_room(error, tmp_path):
    said = explained(error, str(tmp_path / "not" / "there"), "saving step 30")
    assert str(said).startswith(f"{tmp_path}/not/there: saving step 30 failed, no space is left on")
    assert " GB free); make room, or give a folder on another disk as --workdir" in str(said)
    assert said.errno == errno.ENOSPC and not is_late(error)


def test_a_disk_that_is_read_only_or_refuses_says_so(tmp_path):
    for number, words in ((errno.EROFS, "is read-only; mount it"), (errno.EACCES, "may not write")):
        said = explained(OSError(number, os.strerror(number), "/w/x"), "/w")
        assert words in str(said) and said.errno == number
    assert explained(ValueError("another thing"), "/w") is None
    assert explained(FileNotFoundError(errno.ENOENT, "No such file"), "/w") is None


@pytest.mark.parametrize(
    "error",
    [
        OSError(FORBIDDEN),
        ValueError(f"PERMISSION_DENIED: HTTP 403, body: {FORBIDDEN}"),
        HttpError(403, FORBIDDEN),
    ],
)
def test_a_refusal_names_the_account_the_permission_and_the_command(error):
    said = explained(error, "gs://runs/mine", "writing lock")
    assert isinstance(said, PermissionError) and not is_late(said)
    assert f"writing lock was refused; {ACCOUNT} has no storage.objects.create on gs://runs" in str(
        said
    )
    command = "gcloud storage buckets add-iam-policy-binding gs://runs "
    assert f"{command}--member=serviceAccount:{ACCOUNT} --role=roles/storage.objectUser" in str(
        said
    )


def test_nobody_is_told_how_to_become_somebody():
    text = "Anonymous caller does not have storage.objects.list access to the bucket."
    said = str(explained(HttpError(401, text), "gs://runs/mine"))
    assert "no account is known here" in said and "gcloud auth application-default login" in said


@pytest.mark.parametrize(
    "error",
    [
        HttpError(503, "Service Unavailable"),
        HttpError(429, "Too Many Requests"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"),
        ValueError("UNAVAILABLE: CURL error Couldn't resolve host name"),
        ValueError("DEADLINE_EXCEEDED: Timeout"),
    ],
)
def test_what_may_pass_is_told_from_what_does_not(error):
    assert is_late(error)
    said = explained(error, "gs://runs/mine")
    assert isinstance(said, ConnectionError) and is_late(said)
    assert "does not answer as it should" in str(said) and "start the same command again" in str(
        said
    )


def test_a_bucket_that_is_not_there_is_named_without_its_folder():
    said = explained(FileNotFoundError("runs/mine/lock"), "gs://runs/mine")
    assert "there is no bucket gs://runs, or this account may not see it" in str(said)
    assert explained(KeyError("step"), "gs://runs/mine") is None


@pytest.mark.parametrize("step", [401, 404, 500, 503])
def test_a_number_in_a_path_is_no_status(step):
    place = f"gs://runs/run-{step}/checkpoints/{step}"
    path = f"{place}/state/d/{step}"
    assert explained(ValueError(f"{path}/params/.zarray holds no JSON"), place) is None
    assert explained(ValueError(f"gs://other/{step}/a, {step} bytes"), place) is None
    missing = explained(ValueError(f'NOT_FOUND: Error reading GCS object "{path}"'), place)
    assert isinstance(missing, FileNotFoundError)
    words = ValueError("NOT_FOUND: gs://timed out/UNAVAILABLE/x")
    assert isinstance(explained(words, "gs://timed out/UNAVAILABLE"), FileNotFoundError)
    kind = type(explained(OSError(f"cannot read {path}"), place))
    assert kind is OSError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (HttpError(401, "Login Required"), PermissionError),
        (HttpError(404, "Not Found"), FileNotFoundError),
        (HttpError(500, "Backend Error"), ConnectionError),
        (ValueError("HTTP response code: 503 with body: later"), ConnectionError),
        (ValueError("INTERNAL [http_response_code='500']"), ConnectionError),
        (ValueError("HTTP 404, body: not there"), FileNotFoundError),
        (ValueError("<HttpError 401 when asked>"), PermissionError),
    ],
)
def test_a_status_is_found_where_libraries_say_it(error, kind):
    assert isinstance(explained(error, "gs://runs/mine/checkpoints/503"), kind)
