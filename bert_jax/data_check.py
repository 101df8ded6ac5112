"""Whether the files that a run trains on are those that were built, found beside its first steps.

Process 0 hashes them in a thread of the lowest priority. What it found is kept in the workdir with
size and time of each file, so that a restart reads nothing again that has not changed.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import sys
import threading
from collections.abc import Sequence

from bert_jax import processes
from bert_jax.record_files import write_whole
from bert_jax.stopping import Stop
from data_pipeline import small_files, verify
from data_pipeline.store import MANIFEST, Store

FILE = "data_verified.json"  # in the workdir
BYTES_PER_SEC = 500e6  # at most, while steps are taken; a disk is not to be kept busy by it
_LOWEST_PRIORITY = 19


class _Ended(Exception):
    """The run ended before all was read."""


class DataCheck:
    """Compares each file of a store with its SHA-256 in the manifest. Must be closed."""

    def __init__(self, store: Store | None, workdir: pathlib.Path, stop: Stop) -> None:
        """Begin, in process 0, unless there is no store or the same files were verified before."""
        self._path, self._stop = workdir / FILE, stop
        self._problem = ""
        self._ended, self._hurries = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        if store is not None and processes.number() == 0 and not self._is_known(store):
            self._thread = threading.Thread(
                target=self._run, args=(store,), daemon=True, name="data check"
            )
            self._thread.start()

    def problem(self, limit_secs: float, waits: bool = False) -> str:
        """Return what is wrong with the data so far, "" if nothing; the same on every process.

        All processes must ask at the same points of the run. With waits all files are read first.
        """
        if waits and self._thread is not None:
            self._hurries.set()
            self._thread.join()
        name = "whether the data are as they were built"
        return processes.agree(name, self._problem, limit_secs)[0]

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, store: Store) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        try:
            before = _marks(store)
            verify.verify(store.directory, store.manifest, self._advance)
            if before == _marks(store):
                write_whole(self._path, f"{json.dumps(before)}\n".encode())
        except _Ended:
            return
        except ValueError as error:
            self._problem = str(error)
            self._stop.ask()
        except OSError:  # what cannot be read now is met by the step that needs it
            return

    def _advance(self, read_bytes: int) -> None:
        if self._ended.is_set():
            raise _Ended
        if not self._hurries.is_set():
            self._hurries.wait(read_bytes / BYTES_PER_SEC)

    def _is_known(self, store: Store) -> bool:
        """Whether these very files were verified by an earlier start of the run."""
        try:
            known = small_files.read_object(self._path, self._path.parent)
            return known == _marks(store)
        except (OSError, ValueError):
            return False


def _marks(store: Store) -> dict[str, object]:
    """Return what tells a store from the same one after a change of a file."""
    manifest = small_files.read_bytes(store.directory / MANIFEST, store.directory)
    marks: dict[str, object] = {"manifest": hashlib.sha256(manifest).hexdigest()}
    for path in verify.verified_files(store.directory, store.manifest):
        status = path.stat()
        marks[str(path)] = [status.st_size, status.st_mtime_ns, status.st_ino]
    return marks


def refusal(
    problem: str, started_step: int, step: int, saved: Sequence[int], quarantined: Sequence[int]
) -> str:
    """Return the sentence that ends a run whose data are damaged.

    It started at started_step and came to step; saved are the checkpoints that it left after its
    start, quarantined those of them that were set aside.
    """
    trained = "no step was trained on them"
    if step > started_step:
        trained = f"steps {started_step + 1:,} to {step:,} were trained on them"
    if quarantined:
        listed = ", ".join(f"{one:,}" for one in quarantined)
        trained += f", and their checkpoints ({listed}) are in checkpoints_damaged/"
    way_on = "with the data mended the same command resumes from the newest checkpoint"
    if set(saved) - set(quarantined):
        trained += ", and no checkpoint of an earlier step is left"
        way_on = "with the data mended train anew in another --workdir"
    elif started_step:
        way_on += "; if they were damaged before this start too, train anew"
    return f"the data of this run are damaged: {problem}; {trained}; {way_on}"
