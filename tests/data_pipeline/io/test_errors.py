"""What disks and buckets refuse, as each library says it and as we do."""

import errno
import os

import pytest

from data_pipeline.io.errors import explain, get_first_line, is_transient

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
    text = explain(error, str(tmp_path / "not" / "there"), "saving step 30")
    assert str(text).startswith(f"{tmp_path}/not/there: saving step 30 failed, no space is left on")
    assert " GB free); make room, or give a folder on another disk" in str(text)
    assert text.errno == errno.ENOSPC and not is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError(FORBIDDEN),
        ValueError(f"PERMISSION_DENIED: HTTP 403, body: {FORBIDDEN}"),
        HttpError(403, FORBIDDEN),
    ],
)
def test_a_refusal_names_the_account_the_permission_and_the_command(error):
    refusal = explain(error, "gs://runs/mine", "writing lock")
    assert isinstance(refusal, PermissionError) and not is_transient(refusal)
    text = str(refusal)
    assert f"writing lock was refused; {ACCOUNT} has no storage.objects.create on gs://runs" in text
    command = "gcloud storage buckets add-iam-policy-binding gs://runs "
    assert f"{command}--member=serviceAccount:{ACCOUNT} --role=roles/storage.objectUser" in text


def test_nobody_is_told_how_to_become_somebody():
    refusal = "Anonymous caller does not have storage.objects.list access to the bucket."
    text = str(explain(HttpError(401, refusal), "gs://runs/mine"))
    assert "no account is known here" in text and "gcloud auth application-default login" in text


def test_a_bucket_that_is_not_there_is_named_without_its_folder():
    text = explain(FileNotFoundError("runs/mine/lock"), "gs://runs/mine")
    assert "there is no bucket gs://runs, or this account may not see it" in str(text)
    assert explain(KeyError("step"), "gs://runs/mine") is None


def test_the_words_of_a_path_say_nothing_about_an_error():
    assert not is_transient(OSError(errno.ENOSPC, "No space left", "/data/timed out/y"))
    assert is_transient(OSError(errno.ESTALE, "Stale file handle", "/data/y"))


@pytest.mark.parametrize("step", [401, 404, 500, 503])
def test_a_number_in_a_path_is_no_status(step):
    place = f"gs://runs/run-{step}/checkpoints/{step}"
    path = f"{place}/state/d/{step}"
    assert explain(ValueError(f"{path}/params/.zarray holds no JSON"), place) is None
    assert explain(ValueError(f"gs://other/{step}/a, {step} bytes"), place) is None
    missing = explain(ValueError(f'NOT_FOUND: Error reading GCS object "{path}"'), place)
    assert isinstance(missing, FileNotFoundError)
    words = ValueError("NOT_FOUND: gs://timed out/UNAVAILABLE/x")
    assert isinstance(explain(words, "gs://timed out/UNAVAILABLE"), FileNotFoundError)
    kind = type(explain(OSError(f"cannot read {path}"), place))
    assert kind is OSError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (HttpError(401, "Login Required"), PermissionError),
        (HttpError(404, "Not Found"), FileNotFoundError),
        (HttpError(429, "Too Many Requests"), ConnectionError),
        (HttpError(500, "Backend Error"), ConnectionError),
        (HttpError(503, "Service Unavailable"), ConnectionError),
        (ValueError("HTTP response code: 503 with body: later"), ConnectionError),
        (ValueError("INTERNAL [http_response_code='500']"), ConnectionError),
        (ValueError("HTTP 404, body: not there"), FileNotFoundError),
        (ValueError("<HttpError 401 when asked>"), PermissionError),
        (ValueError("UNAVAILABLE: CURL error Couldn't resolve host name"), ConnectionError),
        (ValueError("DEADLINE_EXCEEDED: Timeout"), ConnectionError),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"), ConnectionError),
        (OSError("Cannot connect to host storage.googleapis.com:443"), ConnectionError),
        (TimeoutError("no answer"), ConnectionError),
        (PermissionError("Forbidden: corpus/503"), PermissionError),
    ],
)
def test_what_may_pass_is_told_from_what_does_not(error, kind):
    text = explain(error, "gs://runs/mine/checkpoints/503")
    assert type(text) is kind
    is_late = kind is ConnectionError
    assert is_transient(error) == is_transient(text) == is_late
    assert ("does not answer as it should" in str(text)) == is_late
    assert ("start the same command again" in str(text)) == is_late


def test_an_error_without_a_message_is_called_by_its_class():
    assert get_first_line(ValueError("damaged\nat byte 7")) == "damaged"
    assert get_first_line(MemoryError()) == "MemoryError"
