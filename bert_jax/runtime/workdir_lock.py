"""Lock a workdir: a second run is refused, but a killed run does not block the next.

    folder    WORKDIR/lock is locked (flock) until the process ends in any way. Other hosts see the
              lock over NFS, but not over gcsfuse.
    bucket    WORKDIR/lock is an object that the run rewrites every few seconds. Another run waits
              to see whether it changes; if not, the holder is dead.

If a host loses the bucket for longer than this wait, another run may take over its workdir. The
first run notices this before it publishes or saves again, and stops.
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

from data_pipeline.io import Refused, small_files
from data_pipeline.io.bucket import Bucket
from data_pipeline.io.small_files import DamagedFile

FILE = "lock"
RENEW_SECS = 15.0
DEAD_SECS = 60.0  # time without a change after which a holder is dead: four renewals
_LOOK_SECS = 1.0
_MAX_BYTES, _MAX_VALUE_CHARS = 4096, 256  # size limits of a lock, and of one of its values


def _make_holder(**more: Any) -> dict[str, Any]:
    """Describe this process as the holder of a lock, with `more` entries."""
    return {"host": socket.gethostname(), "pid": os.getpid(), **_identify_pid_space(), **more}


def _identify_pid_space() -> dict[str, str]:
    """Identify the kernel boot and the pid namespace, within which a pid identifies a process.

    A host name is not enough: containers may share one, and each counts pids from 1. Returns {} if
    the kernel provides neither.
    """
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "pids": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return {}


def _make_refusal(place: str, holder: dict[str, Any]) -> Refused:
    return Refused(
        f"--workdir={place} is in use by the run of process {holder.get('pid', 'unknown')} on "
        f"{holder.get('host', 'an unknown host')}; wait until it ends or stop it, or give another "
        "--workdir"
    )


# Folders locked by this process until it ends, by path.
_locked: dict[pathlib.Path, IO[bytes]] = {}


def lock_folder(folder: pathlib.Path) -> None:
    """Make a folder, and lock it until this process ends, unless its file system has no locks.

    Raises Refused if another run has locked it, or the lock is a symbolic link.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if folder in _locked:
        return
    number = small_files.open_to_write(folder / FILE, os.O_RDWR | os.O_APPEND)
    file = os.fdopen(number, "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = _read(file.read(_MAX_BYTES))
        file.close()
        raise _make_refusal(str(folder), holder) from None
    except OSError:  # some network file systems have no locks
        file.close()
        return
    file.truncate(0)
    file.write(f"{json.dumps(_make_holder())}\n".encode())
    _locked[folder] = file


def is_locked(folder: pathlib.Path) -> bool:
    """Return whether another process has locked a folder, without locking it."""
    try:
        number = os.open(folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # no lock file, or one that lock_folder refuses
        return False
    with os.fdopen(number, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return folder.resolve() not in _locked
        except OSError:  # some network file systems have no locks
            return False
    return False


def was_locked_here(folder: pathlib.Path) -> bool:
    """Return whether a process of this host was the last to lock a folder, even if it has ended.

    False for a copy of a bucket's lock, and on a file system without locks.
    """
    try:
        holder = _read(small_files.read_bytes(folder / FILE, None, _MAX_BYTES))
    except (OSError, DamagedFile):
        return False
    return holder.get("host") == socket.gethostname() and "renewed" not in holder


def _read(content: bytes | None) -> dict[str, Any]:
    """Read the holder from a lock; {} if it is empty, half written or damaged."""
    try:
        holder = small_files.parse_object(content or b"{}", FILE)
    except DamagedFile:
        return {}
    kinds = {"pid": int, "renewed": int}
    return {
        name: value
        for name, value in holder.items()
        if type(value) is kinds.get(name, str)
        and len(text := str(value)) <= _MAX_VALUE_CHARS
        and text.isprintable()
    }


class _TakenOver(OSError):
    """Signal that another run has taken over the lock."""


class Lease:
    """Hold the lock of a bucket, renewed in a thread until it is released or taken over."""

    def __init__(self, bucket: Bucket, **more: Any) -> None:
        """Acquire the lock, if necessary from a dead run; store `more` in it.

        Raises:
          Refused: a live run holds it.
          OSError: the bucket does not answer.
        """
        self._bucket = bucket
        self._mine = _make_holder(run=uuid.uuid4().hex, **more)
        self.before: dict[str, Any] = {}  # the previous holder
        if not bucket.create(FILE, self._make_content(0)):
            self.before = self._await_dead_holder()
            bucket.write(FILE, self._make_content(0))
            time.sleep(_LOOK_SECS)  # if two runs take the lock at once, the later one wins
        self.check()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="workdir lock")
        self._thread.start()

    def check(self) -> None:
        """Raise OSError if another run holds the lock, or the bucket does not answer."""
        holder = _read(self._bucket.read(FILE))
        if holder.get("run") not in (self._mine["run"], None):
            raise _TakenOver(
                f"{self._bucket.address} was taken by the run of process {holder.get('pid')} on "
                f"{holder.get('host')} while this one could not reach the bucket; this one stops"
            )

    def close(self) -> None:
        """Release the lock; the object remains, marked as released."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.check()
            self._bucket.write(FILE, self._make_content(-1))

    def _make_content(self, renewed: int) -> bytes:
        return json.dumps(self._mine | {"renewed": renewed}).encode()

    def _await_dead_holder(self) -> dict[str, Any]:
        """Wait until the run that holds the lock is known to be dead; return the holder."""
        text = self._bucket.read(FILE)
        holder = _read(text)
        if holder.get("renewed", -1) < 0 or _is_gone_from_here(holder):
            return holder
        end = time.monotonic() + DEAD_SECS
        while time.monotonic() < end:
            time.sleep(_LOOK_SECS)
            if self._bucket.read(FILE) != text:
                raise _make_refusal(self._bucket.address, holder)
        return holder

    def _renew(self) -> None:
        renewed = 0
        while not self._ended.wait(RENEW_SECS):
            renewed += 1
            try:
                self.check()
                self._bucket.write(FILE, self._make_content(renewed))
            except _TakenOver:
                return
            except Exception:
                # A short outage ends before this run counts as dead; check() reports a long one.
                continue


def _is_gone_from_here(holder: dict[str, Any]) -> bool:
    """Return whether a holder was a process of this boot and pid namespace, and has ended."""
    here = {"host": socket.gethostname(), **_identify_pid_space()}
    if "pids" not in here or any(holder.get(name) != value for name, value in here.items()):
        return False
    if holder.get("pid") == os.getpid():  # the pid was reused
        return True
    try:
        os.kill(holder["pid"], 0)
    except (OSError, KeyError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False
