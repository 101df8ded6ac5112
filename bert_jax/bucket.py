"""A folder in a bucket: whole objects, read and written within a time or with one sentence why not.

Only small things come this way. The arrays of checkpoints are TensorStore's, which has its own
requests to Google; names and markers beside them are epath's, led through the same driver as here.
"""

import contextlib
import dataclasses
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import fsspec

from bert_jax import storage_errors
from data_pipeline.files import filesystem

ANSWER_SECS = 60.0  # for one request with the driver's own retries, which last 34 s

T = TypeVar("T")


def use_one_driver() -> None:
    """Have epath reach buckets through gcsfs, and gcsfs ask the bucket each time it is asked.

    Where TensorFlow is installed epath would take its file system, with credentials, retries and
    errors of its own; and gcsfs would remember for ever which files another process had not
    written yet. To be called before the first address is looked at.
    """
    os.environ["EPATH_USE_TF"] = "false"  # epath has no other way to say so
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The objects below gs://BUCKET/PATH, or another address that fsspec knows."""

    address: str
    answer_secs: float = ANSWER_SECS
    # The file system, kept: fsspec would make each thread one that has to find out who we are.
    _files: list[Any] = dataclasses.field(default_factory=list)

    def read(self, name: str) -> bytes | None:
        """The bytes of an object, None where there is none."""

        def read(files: Any, path: str) -> bytes | None:
            with contextlib.suppress(FileNotFoundError):
                return cast(bytes, files.cat_file(path))
            return None

        return self._answered(f"reading {name}", name, read)

    def write(self, name: str, data: bytes) -> None:
        """Put an object there, whole or not at all, in place of one that was there."""

        def write(files: Any, path: str) -> None:
            files.pipe_file(path, data)

        self._answered(f"writing {name}", name, write)

    def create(self, name: str, data: bytes) -> bool:
        """The same where no object is there yet; whether it was so."""

        def create(files: Any, path: str) -> bool:
            try:
                files.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

        return self._answered(f"writing {name}", name, create)

    def delete(self, name: str) -> None:
        """Remove an object; nothing where there is none."""

        def delete(files: Any, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                files.rm_file(path)

        self._answered(f"deleting {name}", name, delete)

    def names(self) -> list[str]:
        """Names right below the address, of folders with a slash behind them."""

        def names(files: Any, path: str) -> list[str]:
            try:
                listed = files.ls(path, detail=True)
            except FileNotFoundError:
                return []
            found = {
                one["name"].rstrip("/").rpartition("/")[2] + "/" * (one["type"] == "directory")
                for one in listed
                if one["name"].strip("/") != path.strip("/")
            }
            return sorted(found)

        return self._answered("listing", "", names)

    def look_at_bucket(self) -> None:
        """Ask for the bucket itself, as Orbax does before it deletes a checkpoint there."""

        def look(files: Any, path: str) -> None:
            if hasattr(files, "call"):  # gcsfs; others have no such request
                files.call("GET", "b/{}", path.lstrip("/").partition("/")[0])

        self._answered("looking at the bucket", "", look)

    def _answered(self, what: str, name: str, call: Callable[[Any, str], T]) -> T:
        """What call gives for the file system and the path of an object, within the time.

        Raises:
          OSError: one sentence: the address, what was tried, why it failed.
        """
        answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def ask() -> None:
            try:  # to find out who we are takes requests, too
                files, folder = self._opened()
                answers.put((call(files, f"{folder}/{name}" if name else folder), None))
            except Exception as error:
                answers.put((None, error))

        # A daemon: a request that never comes back does not keep the process from ending.
        threading.Thread(target=ask, daemon=True, name=f"bucket, {what}").start()
        try:
            answer, error = answers.get(timeout=self.answer_secs)
        except queue.Empty:
            raise TimeoutError(
                f"{self.address}: {what} got no answer within {self.answer_secs:g} s; look at this "
                "host's network, then start the same command again"
            ) from None
        if error is not None:
            said = storage_errors.explained(error, self.address, what)
            raise error if said is None else said from error
        return cast(T, answer)

    def _opened(self) -> tuple[Any, str]:
        files, folder = filesystem(self.address) if not self._files else self._files[0]
        self._files[:] = [(files, folder)]
        return files, folder
