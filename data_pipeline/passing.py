"""Which errors of a disk or a bucket may well not come again, whatever library raises them.

What a library says holds the path that it was asked for, and a path may hold any number or word: a
status is taken from the error itself or from where a message calls it so, and paths are left out.
"""

import errno
import re
import urllib.parse

# Of a mounted folder, a disk or the network, which the next try may find well.
_ERRNOS = {
    errno.ESTALE,
    errno.EIO,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
}
_LATE_STATUS = {408, 429, 500, 502, 503, 504}
_DENIED_STATUS = {401, 403}
# "HTTP 503", "HTTP response code: 503", "HttpError 503", "http_response_code='503'"
_STATUS = re.compile(r"(?:\bHTTP(?:Error|/[\d.]+)?|\b\w*code)[\s:='\"(]{1,3}([1-5]\d\d)\b", re.I)
_DENIED = re.compile(r"Forbidden|Unauthorized|PERMISSION_DENIED|UNAUTHENTICATED")
_LATE = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]annot connect|timed? ?out|ProxyError|TransportError"
    r"|[Cc]onnection (refused|reset|aborted)|Server ?[Dd]isconnected|Name or service not known"
    r"|Temporary failure in name resolution|CURL error"
)


def text_of(error: BaseException, place: str = "") -> str:
    """The words of an error with its type, for some have none of their own; without the place."""
    text = f"{type(error).__name__} {error}"
    path = place.partition("://")[2]
    for name in (place, path, urllib.parse.quote(path, safe="")):
        if "/" in name or "%2F" in name:
            text = text.replace(name, " ")
    return text


def status_of(error: BaseException, place: str = "") -> int | None:
    """The HTTP status that an error is about; None where it tells of none."""
    answer = getattr(error, "response", None)
    for found in (
        getattr(error, "code", None),  # gcsfs, google.api_core
        getattr(error, "status", None),  # aiohttp
        getattr(answer, "status_code", None),  # requests
    ):
        if isinstance(found, int) or (isinstance(found, str) and found.isdecimal()):
            return int(found)
    said = _STATUS.search(text_of(error, place))
    return int(said[1]) if said else None


def is_denied(error: BaseException, place: str = "") -> bool:
    """Whether a bucket lets this account not do it."""
    return status_of(error, place) in _DENIED_STATUS or bool(_DENIED.search(text_of(error, place)))


def is_late(error: BaseException, place: str = "") -> bool:
    """Whether a bucket may well do later what it does not do now."""
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    late = status_of(error, place) in _LATE_STATUS or _LATE.search(text_of(error, place))
    return bool(late) and not is_denied(error, place)


def is_of_the_moment(error: OSError) -> bool:
    """Whether the same command may well succeed when it is started again."""
    return isinstance(error, TimeoutError | ConnectionError) or error.errno in _ERRNOS
