"""Convert errors of disks and buckets to one sentence: the place, the reason, how to fix it.

Each library words the same failure in its own way: Python's OSError, TensorStore's ValueError with
RESOURCE_EXHAUSTED, gcsfs's HttpError, Google's Forbidden. `explain_errors` wraps the work, while
`explain` and `is_transient` look at a single error.

Messages quote the requested path, which may contain any number or word, so paths are ignored: a
status is read from an attribute of the error, or where the message labels it as one.
"""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import urllib.parse
from collections.abc import Iterator

from data_pipeline.io.address import is_address

# Transient failures of a mounted folder, a disk or the network.
_TRANSIENT_ERRNOS = {
    errno.ESTALE,
    errno.EIO,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
}
_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
_DENIED_STATUS = {401, 403}
# "HTTP 503", "HTTP response code: 503", "HttpError 503", "http_response_code='503'"
_STATUS = re.compile(r"(?:\bHTTP(?:Error|/[\d.]+)?|\b\w*code)[\s:='\"(]{1,3}([1-5]\d\d)\b", re.I)
_DENIED = re.compile(r"Forbidden|Unauthorized|PERMISSION_DENIED|UNAUTHENTICATED")
_TRANSIENT = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]annot connect|timed? ?out|ProxyError|TransportError"
    r"|[Cc]onnection (refused|reset|aborted)|Server ?[Dd]isconnected|Name or service not known"
    r"|Temporary failure in name resolution|CURL error"
)


@contextlib.contextmanager
def explain_errors(
    place: str, action: str = "reading", has_tensorstore: bool = False
) -> Iterator[None]:
    """Convert storage errors of the block to OSErrors of one sentence.

    place is a folder or an address; action describes what the block does there. `explain` lists the
    classes of OSError. Every error of a bucket's driver becomes an OSError, as drivers share no
    base class. Other errors keep their type; so do ValueErrors without has_tensorstore
    (TensorStore raises everything as a ValueError).
    """
    try:
        yield
    except Exception as error:
        is_explained = isinstance(error, OSError) and str(error).startswith(f"{place}: ")
        if is_explained or (isinstance(error, ValueError) and not has_tensorstore):
            raise
        explained = explain(error, place, action)
        if explained is None and is_address(place) and _is_of_a_driver(error):
            explained = OSError(f"{place}: {action} failed: {_shortened(_described(error))}")
        if explained is None:
            raise
        raise explained from error


def explain(error: BaseException, place: str, action: str = "writing") -> OSError | None:
    """Describe an error of storage as an OSError of one sentence; None for any other error.

    For a disk the result has the errno of the failure, whichever library met it, and is a
    PermissionError if the user lacks a permission. For a bucket it is a PermissionError,
    ConnectionError (transient), FileNotFoundError or plain OSError.
    """
    if is_address(place):
        return _explain_bucket(error, place, action)
    text = _text_without_place(error, place)
    for number, (reason, fix) in _DISK.items():
        if getattr(error, "errno", None) == number or os.strerror(number) in text:
            free = f" ({_free_bytes(place) / 1e9:,.2f} GB free)" if fix == ROOM else ""
            kind = PermissionError if fix == _PERMISSIONS else OSError
            explained = kind(f"{place}: {action} failed, {reason}{free}; {fix}")
            explained.errno = number  # an argument would be printed before the sentence
            return explained
    return None


def is_transient(error: BaseException, place: str = "") -> bool:
    """Classify a storage error: True if the same command may succeed when it is started again."""
    place = place or str(getattr(error, "filename", None) or "")
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    if getattr(error, "errno", None) in _TRANSIENT_ERRNOS:
        return True
    text = _text_without_place(error, place)
    is_temporary = _status(error, place) in _TRANSIENT_STATUS or bool(_TRANSIENT.search(text))
    return is_temporary and not _is_denied(error, place)


def get_first_line(error: BaseException) -> str:
    """Return up to 200 characters of a message's first line; without a message, the class."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _text_without_place(error: BaseException, place: str) -> str:
    """Return an error's class and message (some have none), with the names of `place` blanked."""
    text = f"{type(error).__name__} {error}"
    path = place.partition("://")[2]
    for name in (place, path, urllib.parse.quote(path, safe="")):
        if "/" in name or "%2F" in name:
            text = text.replace(name, " ")
    return text


def _status(error: BaseException, place: str) -> int | None:
    """Return the HTTP status that an error reports; None if it reports none."""
    response = getattr(error, "response", None)
    for status in (
        getattr(error, "code", None),  # gcsfs, google.api_core
        getattr(error, "status", None),  # aiohttp
        getattr(response, "status_code", None),  # requests
    ):
        if isinstance(status, int) or (isinstance(status, str) and status.isdecimal()):
            return int(status)
    match = _STATUS.search(_text_without_place(error, place))
    return int(match[1]) if match else None


def _is_denied(error: BaseException, place: str) -> bool:
    text = _text_without_place(error, place)
    return _status(error, place) in _DENIED_STATUS or bool(_DENIED.search(text))


def _is_of_a_driver(error: BaseException) -> bool:
    """Return whether an error comes from a bucket's driver: not from Python or this project."""
    package = type(error).__module__.partition(".")[0]
    return package not in ("builtins", "bert_jax", "data_pipeline")


ROOM = "make room, or give a folder on another disk"
FULL = {  # errno -> the reason, how to fix it
    errno.ENOSPC: ("no space is left on the disk", ROOM),
    errno.EDQUOT: ("the disk quota of this user is used up", ROOM),
    errno.EFBIG: (
        "the file would be larger than this process may write",
        "raise the limit (ulimit -f unlimited), or give a folder on another disk",
    ),
}
_PERMISSIONS = "change its owner or its permissions, or give another folder"
# Other libraries quote the system's words (os.strerror).
_DISK = {
    **FULL,
    errno.EROFS: ("the file system is read-only", "mount it for writing, or give another folder"),
    errno.EACCES: ("this user lacks the permission", _PERMISSIONS),
    errno.EPERM: ("this user lacks the permission", _PERMISSIONS),
    errno.EIO: (
        "the disk cannot be read or written (input/output error)",
        "look at the host's kernel log, and give a folder on another disk",
    ),
    errno.ESTALE: ("the mounted folder is gone (stale file handle)", "mount it again"),
}
# "ACCOUNT does not have storage.objects.create access to the Google Cloud Storage object."
_ACCOUNT = re.compile(r"([\w.+-]+@[\w.-]+|Anonymous caller) does not have")
_PERMISSION = re.compile(r"storage\.(?:buckets|objects|multipartUploads|folders)\.\w+")
_NO_BUCKET = re.compile(r"bucket does not exist|No such (bucket|object)|NOT_FOUND")


def _free_bytes(place: str) -> int:
    """Return the free bytes of the disk that a folder, which may not exist yet, is on."""
    folder = pathlib.Path(place).absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _described(error: BaseException) -> str:
    code = getattr(error, "code", "")
    return " ".join(f"{type(error).__name__} {code} {error}".split())


_OFFLINE = re.compile(r"[Oo]ffline|LocalEntryNotFound")


def _explain_bucket(error: BaseException, place: str, action: str) -> OSError | None:
    """Describe an error of a bucket, or of hf://, the Hub of Hugging Face."""
    text, path = _described(error), place.partition("://")[2]
    if place.startswith("hf://"):
        if _OFFLINE.search(_text_without_place(error, place)):
            return ConnectionError(
                f"{place}: {action} failed, HF_HUB_OFFLINE keeps this process off the Hub; unset "
                "it, or download the files first (hf download) and give their local paths"
            )
        page = "https://huggingface.co/" + "/".join(path.split("/")[:3])
        service, status_page = "the Hub", "https://status.huggingface.co"
        refusal = (
            " by the Hub: the data set is gated or private; accept its terms at "
            f"{page}, and log in by `hf auth login` or set HF_TOKEN"
        )
        absence = (
            "the Hub has no such data set or file, or shows it only to some accounts; look at "
            f"{page}, and log in by `hf auth login` where it is private"
        )
    else:
        bucket = "gs://" + path.partition("/")[0]
        service, status_page = "the bucket", "https://status.cloud.google.com"
        refusal = f"; {_missing_permission(text, bucket)}"
        absence = (
            f"there is no bucket {bucket}, or this account may not see it; make it with `gcloud "
            f"storage buckets create {bucket}`, or give another address"
        )
    if _is_denied(error, place) or "Gated" in type(error).__name__:
        return PermissionError(f"{place}: {action} was refused{refusal}")
    if is_transient(error, place):
        return ConnectionError(
            f"{place}: {action} failed, {service} does not answer as it should "
            f"({_shortened(text)}); look at this host's network and at {status_page}, then start "
            "the same command again"
        )
    is_missing = isinstance(error, FileNotFoundError) or _status(error, place) == 404
    if is_missing or _NO_BUCKET.search(_text_without_place(error, place)):
        return FileNotFoundError(f"{place}: {action} failed, {absence}")
    if isinstance(error, OSError):
        return OSError(f"{place}: {action} failed: {_shortened(text)}")
    return None


def _missing_permission(text: str, bucket: str) -> str:
    """Name the permission that is missing, the account, and the command that grants it."""
    match, permission = _ACCOUNT.search(text), _PERMISSION.search(text)
    account = match[1] if match else "the account of this host"
    missing = permission[0] if permission else "a permission that Google does not name"
    is_of_bucket = missing == "storage.buckets.get"
    role = "roles/storage.legacyBucketReader" if is_of_bucket else "roles/storage.objectUser"
    if account.startswith("Anonymous"):
        return (
            f"no account is known here and the bucket lets nobody in without {missing}; run "
            "`gcloud auth application-default login`, or start the VM with a service account"
        )
    if "@" not in account:
        member = "serviceAccount:ACCOUNT"
    else:
        member = ("serviceAccount:" if "gserviceaccount" in account else "user:") + account
    return (
        f"{account} has no {missing} on {bucket}: `gcloud storage buckets add-iam-policy-binding "
        f"{bucket} --member={member} --role={role}` grants it"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}..."
