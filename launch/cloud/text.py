"""Read and show text from outside: it is data, never run, bounded, escaped for a terminal."""

import datetime
import json
import re
import sys
from typing import Any, NoReturn

MAX_TEXT = 200
# Control characters, what changes the direction of writing or ends a line, bytes that are not
# UTF-8.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape(text: str) -> str:
    r"""Return text in one line, with \x1b and the like for what a terminal would obey."""
    return _HIDDEN.sub(
        lambda found: "".join(f"\\x{b:02x}" for b in found[0].encode("utf-8", "surrogateescape")),
        text,
    )


def refuse(words: str, code: int = 2) -> NoReturn:
    """End with one sentence; the exit code 2 says that nothing was created."""
    print(escape(f"error: {words}"), file=sys.stderr)
    sys.exit(code)


def read_json(text: str) -> Any:
    """Return the JSON value of a text, None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def dig_any(body: Any, *path: str | int) -> Any:
    """Return the value at a path of keys and indices, None where there is none."""
    for step in path:
        if isinstance(step, int):
            body = body[step] if isinstance(body, list) and len(body) > step else None
        else:
            body = body.get(step) if isinstance(body, dict) else None
    return body


def dig(body: Any, *path: str | int) -> str:
    """Return the text at a path of keys and indices, '' where there is none; never a long one."""
    value = dig_any(body, *path)
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def read_time(text: str) -> float | None:
    """Return the seconds since 1970 of a time in RFC 3339, None where it is none."""
    # Nine digits of a second are more than Python 3.11 reads.
    try:
        time = datetime.datetime.fromisoformat(re.sub(r"\.\d+", "", text))
        return time.timestamp() if time.tzinfo else None
    except (ValueError, OverflowError):
        return None
