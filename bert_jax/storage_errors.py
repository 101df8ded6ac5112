"""What disks and buckets refuse, as one sentence: the place, what was refused, the way out.

Each library has its own words for the same thing: Python's OSError, TensorStore's ValueError with
RESOURCE_EXHAUSTED, gcsfs's HttpError, Google's Forbidden. All of them are told apart here.
"""

import errno
import pathlib
import re
import shutil

from data_pipeline import passing
from data_pipeline.files import is_address

_DISK = (
    # (errno, its words in other libraries' messages, ours, the way out)
    (
        errno.ENOSPC,
        "No space left on device",
        "no space is left on the disk",
        "make room, or give a folder on another disk as --workdir",
    ),
    (
        errno.EDQUOT,
        "Disk quota exceeded",
        "the disk quota of this user is used up",
        "make room, or give a folder on another disk as --workdir",
    ),
    (
        errno.EROFS,
        "Read-only file system",
        "the file system is read-only",
        "mount it for writing, or give another folder as --workdir",
    ),
    (
        errno.EACCES,
        "Permission denied",
        "this user may not write there",
        "change its owner or its permissions, or give another folder as --workdir",
    ),
    (
        errno.EPERM,
        "Operation not permitted",
        "this user may not write there",
        "change its owner or its permissions, or give another folder as --workdir",
    ),
    (
        errno.EIO,
        "Input/output error",
        "the disk does not do what it is told (input/output error)",
        "look at the host's kernel log, and give a folder on another disk as --workdir",
    ),
    (
        errno.ESTALE,
        "Stale file handle",
        "the mounted folder is gone (stale file handle)",
        "mount it again",
    ),
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# "ACCOUNT does not have storage.objects.create access to the Google Cloud Storage object."
_ACCOUNT = re.compile(r"([\w.+-]+@[\w.-]+|Anonymous caller) does not have")
_PERMISSION = re.compile(r"storage\.(?:buckets|objects|multipartUploads|folders)\.\w+")
_NO_BUCKET = re.compile(r"bucket does not exist|No such (bucket|object)|NOT_FOUND")
_ROLES = {  # the least that holds a permission
    "storage.buckets.get": "roles/storage.legacyBucketReader",
}
_WRITER = "roles/storage.objectUser"


def explained(error: BaseException, place: str, what: str = "writing") -> OSError | None:
    """The same as an OSError of one sentence; None where storage is not what has failed.

    place is a folder or an address, and what the work that failed there. Of a disk it has the
    errno, whichever library has met it.
    """
    if is_address(place):
        return _of_a_bucket(error, place, what)
    row = _disk_row(error, place)
    if row is None:
        return None
    number, _, words, way_out = row
    free = f" ({_free_bytes(place) / 1e9:,.2f} GB free)" if number in _FULL else ""
    said = OSError(f"{place}: {what} failed, {words}{free}; {way_out}")
    said.errno = number  # given with the sentence, it would stand in front of it
    return said


def _disk_row(error: BaseException, place: str) -> tuple[int, str, str, str] | None:
    text = passing.text_of(error, place)
    for row in _DISK:
        if getattr(error, "errno", None) == row[0] or row[1] in text:
            return row
    return None


def _free_bytes(place: str) -> int:
    """What the disk of a folder has left, also where the folder is not there."""
    there = pathlib.Path(place).absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def _text(error: BaseException) -> str:
    """The words of an error, with its type: some have none of their own."""
    code = getattr(error, "code", "")
    return f"{type(error).__name__} {code} {error}"


def _of_a_bucket(error: BaseException, place: str, what: str) -> OSError | None:
    bucket = "gs://" + place.partition("://")[2].partition("/")[0]
    text, status = _text(error), passing.status_of(error, place)
    if passing.is_denied(error, place):
        return PermissionError(f"{place}: {what} was refused; {_who_lacks_what(text, bucket)}")
    if passing.is_late(error, place):
        return ConnectionError(
            f"{place}: {what} failed, the bucket does not answer as it should "
            f"({_shortened(text)}); look at this host's network and at "
            "https://status.cloud.google.com, then start the same command again"
        )
    words = passing.text_of(error, place)
    if isinstance(error, FileNotFoundError) or status == 404 or _NO_BUCKET.search(words):
        return FileNotFoundError(
            f"{place}: {what} failed, there is no bucket {bucket}, or this account may not see it; "
            f"make it with `gcloud storage buckets create {bucket}`, or give another --workdir"
        )
    if isinstance(error, OSError):
        return OSError(f"{place}: {what} failed: {_shortened(text)}")
    return None


def _who_lacks_what(text: str, bucket: str) -> str:
    """Which permission is missing to whom, and the command that gives it."""
    account, permission = _ACCOUNT.search(text), _PERMISSION.search(text)
    who = account[1] if account else "the account of this host"
    lacks = permission[0] if permission else "a permission that Google does not name"
    role = _ROLES.get(lacks, _WRITER)
    if who.startswith("Anonymous"):
        return (
            f"no account is known here and the bucket lets nobody in without {lacks}; run `gcloud "
            "auth application-default login`, or start the VM with a service account"
        )
    if "@" not in who:
        who_flag = "serviceAccount:ACCOUNT"
    else:
        who_flag = ("serviceAccount:" if "gserviceaccount" in who else "user:") + who
    return (
        f"{who} has no {lacks} on {bucket}: `gcloud storage buckets add-iam-policy-binding "
        f"{bucket} --member={who_flag} --role={role}` gives it"
    )


def _shortened(text: str) -> str:
    """The first words of a message of several lines."""
    words = " ".join(text.split())
    return words if len(words) <= 160 else f"{words[:157]}..."
