"""Distinguish addresses such as gs://bucket/corpus from local paths; open their file systems."""

import os
import pathlib
import re
import shlex
import sys
from typing import Any, cast

import fsspec

from data_pipeline.io import Refused


def is_address(path: str) -> bool:
    """Return whether a path is an address with a protocol, such as gs://bucket/file."""
    return "://" in path


def expand_home(name: str, place: str) -> pathlib.Path:
    """Return a path with ~ filled in; raise Refused, with `name`, where no home folder is known."""
    try:
        return pathlib.Path(place).expanduser()
    except RuntimeError:
        raise Refused(
            f"{name} is {place}, whose home folder is not known here; give a path without ~"
        ) from None


def check_utf8(place: str, subject: str, need: str) -> None:
    """Raise Refused for a path that is not UTF-8: SUBJECT PATH, a name ..., which NEED."""
    try:
        place.encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(place).decode("utf-8", "backslashreplace")
        raise Refused(f"{subject} {name}, a name that is not UTF-8, which {need}") from error


def open_filesystem(address: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address (fsspec has no types), and the path within it.

    Raises:
      Refused: the address has no bucket, has a password, or has a protocol that fsspec does not
        know or has no driver for.
    """
    protocol, _, path = address.partition("://")
    if re.search("://[^/]*:[^/]*@", address):
        raise Refused(
            f"an address with {protocol}:// has a password in it, which manifests would show; give "
            "it in fsspec's own settings, in ~/.config/fsspec, or download the file first"
        )
    if not path:  # stripped of its slashes, gs:// would be a local folder
        raise Refused(f"{protocol.rstrip(':')}:// names no bucket; give one: gs://BUCKET/PATH")
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(address))
    except ImportError as error:
        extra = {"gs": "gcs", "gcs": "gcs", "hf": "hub"}.get(protocol)
        fix = make_install_command(extra) if extra else f"install it ({error})"
        raise Refused(
            f"{address} needs a package that reads {protocol}:// and is not installed: {fix}"
        ) from error
    except ValueError as error:
        raise Refused(
            f"{address} cannot be read: {protocol}:// is not a file system that fsspec knows; "
            "give a local path or gs://BUCKET/PATH"
        ) from error


def make_install_command(extra: str) -> str:
    """Return the command that installs an extra of this package, which is not on PyPI."""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    checkout = pathlib.Path(__file__).resolve().parents[2]
    if not (checkout / "pyproject.toml").is_file():
        return f"{pip} 'FILE.whl[{extra}]', with the wheel of bert_jax"
    place = "." if checkout == pathlib.Path.cwd() else str(checkout)
    return f"{pip} -e {shlex.quote(f'{place}[{extra}]')}"


def use_one_driver() -> None:
    """Make epath use gcsfs for buckets, without cached listings.

    With TensorFlow installed, epath would use TensorFlow's file system, which has credentials,
    retries and errors of its own. A cached listing would lack the files that other processes write
    later. Call this before the first address is read.
    """
    os.environ["EPATH_USE_TF"] = "false"  # epath has no other switch
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
