"""One run in a workdir at a time: the second one is refused, a killed one stands in nobody's way.

    folder    WORKDIR/lock is locked (flock) as long as the process lives, whatever ends it. Hosts
              that mount the folder see it over NFS, and not over gcsfuse.
    bucket    WORKDIR/lock is an object that the run writes anew every few seconds. Whoever finds
              it waits to see whether it changes; if it does not, its run is dead.

A run whose host was cut off from the bucket for longer than that may find its workdir taken; it
notices before it publishes or saves anything more, and stops.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from typing import IO, Any

from bert_jax.bucket import Bucket
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

FILE = "lock"
RENEW_SECS = 15.0
DEAD_SECS = 60.0  # without a change: four times that
_LOOK_SECS = 1.0
_MOST_BYTES = 4096  # of a lock
_MOST_OF_A_VALUE = 256


def _holder(**more: Any) -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), **_numbering(), **more}


def _numbering() -> dict[str, str]:
    """Where a pid means the same process: the boot of a kernel, and a space of pids in it.

    Host names do not tell: containers may share one, and each begins to count at 1. Empty where the
    kernel says neither.
    """
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "pids": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return {}


def _refusal(place: str, holder: dict[str, Any]) -> ValueError:
    return ValueError(
        f"--workdir={place} is in use by the run of process {holder.get('pid', 'unknown')} on "
        f"{holder.get('host', 'an unknown host')}; wait until it ends or stop it, or give another "
        "--workdir"
    )


# Locked by this process until it ends, by their paths; nothing else gives them back.
_held: dict[pathlib.Path, IO[bytes]] = {}


def hold_folder(folder: pathlib.Path) -> None:
    """Lock a folder until this process ends; does nothing where its disk has no locks.

    Raises:
      ValueError: another run has locked it; a link has the lock's name, which is not followed.
    """
    folder = folder.resolve()
    if folder in _held:
        return
    number = small_files.open_to_write(folder / FILE, os.O_RDWR | os.O_APPEND)
    file = os.fdopen(number, "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = _read(file.read(_MOST_BYTES))
        file.close()
        raise _refusal(str(folder), holder) from None
    except OSError:  # some network file systems have none
        file.close()
        return
    file.truncate(0)
    file.write(f"{json.dumps(_holder())}\n".encode())
    _held[folder] = file


def _read(content: bytes | None) -> dict[str, Any]:
    """Read what a lock says of its holder; nothing where it is empty, half written or damaged."""
    try:
        holder = small_files.parse_object(content or b"{}", FILE)
    except DamagedFile:
        return {}
    kinds = {"pid": int, "renewed": int}
    return {
        name: value
        for name, value in holder.items()
        if type(value) is kinds.get(name, str)
        and len(text := str(value)) <= _MOST_OF_A_VALUE
        and text.isprintable()
    }


class _Taken(OSError):
    """Another run has the lock."""


class Lease:
    """A bucket's lock, renewed in a thread until it is given back or taken."""

    def __init__(self, bucket: Bucket, **more: Any) -> None:
        """Take the lock, if need be from a run that has died; `more` is kept in it.

        Raises:
          ValueError: a run that lives holds it.
          OSError: the bucket cannot be asked.
        """
        self._bucket = bucket
        self._mine = _holder(run=uuid.uuid4().hex, **more)
        self.before: dict[str, Any] = {}  # what the lock said of the last run there
        if not bucket.create(FILE, self._text(0)):
            self.before = self._of_a_dead_run()
            bucket.write(FILE, self._text(0))
            time.sleep(_LOOK_SECS)  # two that take it at once: the later one has it
        self._taken_by: dict[str, Any] = {}
        self.check()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="workdir lock")
        self._thread.start()

    def check(self) -> None:
        """Raise if another run has the lock.

        Raises:
          OSError: it has, or the bucket cannot be asked.
        """
        holder = _read(self._bucket.read(FILE))
        if holder.get("run") not in (self._mine["run"], None):
            raise _Taken(
                f"{self._bucket.address} was taken by the run of process {holder.get('pid')} on "
                f"{holder.get('host')} while this one could not be heard of; this one stops"
            )

    def close(self) -> None:
        """Give the lock back; the object stays and says so, for the next run."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.check()
            self._bucket.write(FILE, self._text(-1))

    def _text(self, renewed: int) -> bytes:
        return json.dumps(self._mine | {"renewed": renewed}).encode()

    def _of_a_dead_run(self) -> dict[str, Any]:
        """What the lock says, once its run is known to be dead.

        Raises:
          ValueError: it lives.
        """
        text = self._bucket.read(FILE)
        holder = _read(text)
        if holder.get("renewed", -1) < 0 or _is_gone_from_here(holder):
            return holder
        end = time.monotonic() + DEAD_SECS
        while time.monotonic() < end:
            time.sleep(_LOOK_SECS)
            if self._bucket.read(FILE) != text:
                raise _refusal(self._bucket.address, holder)
        return holder

    def _renew(self) -> None:
        renewed = 0
        while not self._ended.wait(RENEW_SECS):
            renewed += 1
            try:
                self.check()
                self._bucket.write(FILE, self._text(renewed))
            except _Taken:
                return
            except Exception:
                # Heard of again before it counts as dead, or found out by check(): what goes on
                # being refused ends the run there, in words.
                continue


def _is_gone_from_here(holder: dict[str, Any]) -> bool:
    """Whether a holder was a process that could be seen from here and is no more."""
    here = {"host": socket.gethostname(), **_numbering()}
    if "pids" not in here or any(holder.get(name) != value for name, value in here.items()):
        return False
    if holder.get("pid") == os.getpid():  # the number was given anew
        return True
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (KeyError, ValueError, PermissionError):
        return False
    return False
