"""Read and write whole objects of a folder in a bucket, each request within a time limit.

Only small objects are handled here. TensorStore reads and writes the arrays of checkpoints with its
own requests to Google; epath handles their names and markers, with the driver used here.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar, cast

from data_pipeline.io.address import open_filesystem
from data_pipeline.io.errors import explain_errors

ANSWER_SECS = 60.0  # limit of a request, including the driver's retries (34 s)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Access the objects below gs://BUCKET/PATH, or below another address that fsspec knows."""

    address: str
    answer_secs: float = ANSWER_SECS
    # Cached: fsspec would make a file system per thread, and each would request credentials.
    _files: list[Any] = dataclasses.field(default_factory=list)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of an object; None if there is none."""

        def read(files: Any, path: str) -> bytes | None:
            with contextlib.suppress(FileNotFoundError):
                return cast(bytes, files.cat_file(path))
            return None

        return self._request(f"reading {name}", name, read)

    def write(self, name: str, data: bytes) -> None:
        """Write an object, replacing one of the same name, completely or not at all."""
        self._request(f"writing {name}", name, lambda files, path: files.pipe_file(path, data))

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless one of the same name exists; return whether it was written."""

        def create(files: Any, path: str) -> bool:
            try:
                files.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

        return self._request(f"writing {name}", name, create)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""

        def delete(files: Any, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                files.rm_file(path)

        self._request(f"deleting {name}", name, delete)

    def sizes(self) -> dict[str, int]:
        """Return name -> bytes of all objects and folders there; a folder's name ends in /."""

        def sizes(files: Any, path: str) -> dict[str, int]:
            try:
                listed = files.ls(path, detail=True)
            except FileNotFoundError:
                return {}
            entries = {
                entry["name"].rstrip("/").rpartition("/")[2]
                + "/" * (entry["type"] == "directory"): int(entry.get("size") or 0)
                for entry in listed
                if entry["name"].strip("/") != path.strip("/")
            }
            return dict(sorted(entries.items()))

        return self._request("listing", "", sizes)

    def look_at_bucket(self) -> None:
        """Request the bucket itself, as Orbax does before it deletes a checkpoint there."""

        def look(files: Any, path: str) -> None:
            if hasattr(files, "call"):  # gcsfs; others have no such request
                files.call("GET", "b/{}", path.lstrip("/").partition("/")[0])

        self._request("looking at the bucket", "", look)

    def _request(self, action: str, name: str, call: Callable[[Any, str], T]) -> T:
        """Return `call(file system, path of an object)`; raise OSError on failure or timeout."""

        def ask() -> T:
            with explain_errors(self.address, action):
                if not self._files:  # finding the credentials takes requests, too
                    self._files.append(open_filesystem(self.address))
                files, folder = self._files[0]
                return call(files, f"{folder}/{name}" if name else folder)

        late = (
            f"{self.address}: {action} got no answer within {self.answer_secs:g} s; look at this "
            "host's network, then start the same command again"
        )
        return ask_in_time(ask, self.answer_secs, f"bucket, {action}", late)


def ask_in_time(ask: Callable[[], T], answer_secs: float, thread: str, late: str) -> T:
    """Return `ask()`, or raise TimeoutError with the sentence `late` after `answer_secs`.

    A daemon thread asks: a request that never returns does not keep the process from ending.
    """
    answer: Future[T] = Future()

    def put_answer() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=put_answer, daemon=True, name=thread).start()
    if not wait([answer], answer_secs).done:
        raise TimeoutError(late)
    return answer.result()
