"""How long a compile took the last time, kept for the user in one small file of the home folder."""

import contextlib
import hashlib
import json
import pathlib
from typing import Any

from bert_jax.record_files import write_whole
from data_pipeline.small_files import read_object

FILE = pathlib.Path("~/.cache/bert_jax/compile_secs.json")
_MOST = 1000  # entries kept; the oldest go first


def key_of(parts: Any) -> str:
    """Hash what a compile depends on: anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def secs_of(key: str, path: pathlib.Path = FILE) -> float | None:
    """Look up how many seconds it took; None where nobody knows. A damaged file knows nothing."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        secs = read_object(path.expanduser()).get(key)
        if isinstance(secs, int | float) and 0 <= secs < 1e6:
            return float(secs)
    return None


def remember(key: str, secs: float, path: pathlib.Path = FILE) -> None:
    """Keep how many seconds it took. A home that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError, RuntimeError):
        path = path.expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        entries: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            entries = read_object(path)
        entries.pop(key, None)  # so that it stands last
        newest = list(entries.items())[1 - _MOST :]
        write_whole(path, json.dumps(dict([*newest, (key, round(secs, 1))])).encode())
