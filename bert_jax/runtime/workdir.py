"""Open a run's workdir: a folder, or an address in a bucket with a local folder for small files.

    gs://BUCKET/PATH/checkpoints/   written and read by Orbax in all processes
                    /lock           see runtime/workdir_lock.py
                    /...            the small files of the run as of the last save

Small files are always written to a local folder, `home`. For a bucket they are fetched at the start
and published before every save, each object atomically, so the records up to any checkpoint are in
the bucket. Compiled programs stay on the host.

All processes write parts of a checkpoint and wait for the other parts: without a shared folder they
would wait forever. check_all_see tests this before anything is written.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import re
import secrets
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from etils import epath

from bert_jax.logging import metrics_writer
from bert_jax.logging.metrics_writer import EVENTS, PREDICTIONS, SUMMARY, VERIFIED
from bert_jax.parallel import processes
from bert_jax.runtime import profiler, workdir_lock
from bert_jax.runtime.run_record import CHECKPOINTS, FILE, RECORDS
from bert_jax.runtime.workdir_lock import Lease
from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import check_utf8, expand_home, is_address, use_one_driver
from data_pipeline.io.atomic import write_file
from data_pipeline.io.bucket import Bucket
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.jsonl import MAX_BYTES
from data_pipeline.io.small_files import DamagedFile


def check_folder(folder: pathlib.Path) -> None:
    """Create a folder, and test writing, reading and deleting a file in it.

    Raises OSError with the folder, the failed operation and how to fix it.
    """
    probe = folder / f".probe-{uuid.uuid4().hex}"
    content = probe.name.encode()
    with explain_errors(str(folder), "making the folder"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with explain_errors(str(folder), "writing a file as a test"):
            probe.write_bytes(content)
        with explain_errors(str(folder), "reading what was just written"):
            is_same = probe.read_bytes() == content
        with explain_errors(str(folder), "deleting a file"):
            probe.unlink()
    except OSError:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
        raise
    if not is_same:
        raise OSError(f"{folder}: a file read back is not what was written; use another disk")


def check_bucket(bucket: Bucket) -> None:
    """Test the bucket operations that a run needs: read, write, delete, and bucket metadata.

    Raises OSError with the address, the failed operation and how to fix it.
    """
    name = f".probe-{uuid.uuid4().hex}"
    bucket.write(name, name.encode())
    if bucket.read(name) != name.encode():
        raise OSError(f"{bucket.address}: an object read back is not what was written")
    bucket.delete(name)
    bucket.look_at_bucket()


PATIENCE_SECS = 300.0  # duration of retries, after which the run ends and must be restarted
_PAUSE_SECS = 5.0
_THREADS = 8
_ID = ".home"  # file that identifies a home; the lock in the bucket names the last run's home
# Files that every process writes, and publishes from its own host.
_OF_A_PROCESS = re.compile(r"(stacks|libraries)-([1-9]\d*)\.(txt|log)")
COMPILED = "compiled"  # folder of programs compiled on this host
_OF_THE_HOST = {COMPILED, metrics_writer.WANDB_FOLDER, workdir_lock.FILE, _ID}
_NOT_PUBLISHED = {*_OF_THE_HOST, CHECKPOINTS}
_FOLDERS = (
    *(CHECKPOINTS, f"{CHECKPOINTS}_damaged", EVENTS, PREDICTIONS),
    *(COMPILED, metrics_writer.WANDB_FOLDER, profiler.FOLDER),
)
_FILES = sorted({*RECORDS, VERIFIED, workdir_lock.FILE} - set(_FOLDERS))


def check_entries(home: pathlib.Path) -> None:
    """Raise Refused if a file has the name of a run's folder, or a folder the name of a file.

    Symbolic links are followed; a broken link is refused.
    """
    for names, kind, is_right in (
        (_FOLDERS, "folder", pathlib.Path.is_dir),
        (_FILES, "file", pathlib.Path.is_file),
    ):
        for path in (home / name for name in names):
            if (path.exists() or path.is_symlink()) and not is_right(path):
                problem = "a link to nothing" if not path.exists() else f"no {kind}"
                raise Refused(
                    f"{path} is {problem}, but a run keeps a {kind} of that name in its --workdir; "
                    "move it away, or give another --workdir"
                )


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Hold the folders and addresses of a run."""

    home: pathlib.Path  # local folder of the small files
    address: str  # the address as given by the user
    checkpoints: pathlib.Path | epath.Path
    bucket: Bucket | None = None
    number: int = 0  # number of this process
    lease: Lease | None = None  # process 0's lock of a bucket
    # Size and modification time of each file when last published.
    _published: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def claim(self, is_writer: bool) -> None:
        """Create the folder, check that it is writable, and lock it against other runs.

        Does nothing for a bucket, which open_workdir has locked.

        Raises:
          Refused: another run is using it.
          OSError: names the failed operation.
        """
        if self.bucket is not None:
            return
        if not is_writer:  # process 0 may not have created it yet
            self.home.mkdir(parents=True, exist_ok=True)
            return
        check_folder(self.home)
        if self.checkpoints.exists():
            check_folder(pathlib.Path(self.checkpoints))
        workdir_lock.lock_folder(self.home)

    def publish(self, patience_secs: float = PATIENCE_SECS) -> None:
        """Upload changed small files to the bucket, if there is one.

        Transient errors are retried for patience_secs.

        Raises:
          OSError: another run has taken over the workdir; the bucket refuses or does not answer.
        """
        if self.bucket is None:
            return
        bucket, home = self.bucket, self.home
        retry = functools.partial(_retry_until, time.monotonic() + patience_secs)
        if self.lease is not None:
            retry(self.lease.check)
        seen = _list_files_to_publish(home, self.number)
        if self.number == 0 and SUMMARY not in seen and self._published.get(SUMMARY) != (0, 0):
            retry(lambda: bucket.delete(SUMMARY))  # left by an earlier end of the run
        changed = {
            name: status for name, status in seen.items() if self._published.get(name) != status
        }

        def write(name: str) -> None:
            retry(lambda: bucket.write(name, (home / name).read_bytes()))

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(write, changed))
        self._published.update({SUMMARY: (0, 0)} | seen)

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) rows for the screen that locate the files; [] for a local folder."""
        if self.bucket is None:
            return []
        return [("files", f"small files are in {self.home}, and in the bucket as of the last save")]

    def close(self) -> None:
        """Unlock the workdir for the next run."""
        if self.lease is not None:
            self.lease.close()


def open_local_workdir(folder: pathlib.Path) -> Workdir:
    """Return the Workdir of a local folder; raise Refused for a path that JAX cannot open."""
    need = "JAX cannot open; rename the folder, or give another"
    check_utf8(os.path.abspath(folder), "the workdir is", need)
    return Workdir(folder, str(folder), folder / CHECKPOINTS)


def open_workdir(address: str, scratch: str, number: int) -> Workdir:
    """Open the workdir at an address; if it is in a bucket, test, lock and fetch it.

    `scratch` is the local folder for the small files of runs in buckets. `number` is the process
    number; only process 0 tests and locks.

    Raises:
      Refused: another run uses it.
      OSError: the bucket refuses or does not answer, or the folder is not writable.
    """
    if not is_address(address):
        return open_local_workdir(pathlib.Path(address))
    home = locate_home(address, scratch, number)
    bucket, workdir = _locate_in_bucket(address, home)
    check_folder(home)
    if number > 0:
        _fetch(bucket, home)
        return dataclasses.replace(workdir, number=number)
    check_bucket(bucket)
    workdir_lock.lock_folder(home)
    identity, before = home / _ID, b""
    with contextlib.suppress(FileNotFoundError, DamagedFile):
        before = small_files.read_bytes(identity, home)
    # Written only after all files are fetched: an interrupted start fetches again.
    here = uuid.uuid4().hex
    lease = Lease(bucket, home=here)
    if not before or str(lease.before.get("home")).encode() != before:
        identity.unlink(missing_ok=True)
        _fetch(bucket, home)
    write_file(identity, here.encode())
    return dataclasses.replace(workdir, lease=lease)


def fetch_workdir(address: str, into: pathlib.Path) -> Workdir:
    """Open a workdir for reading; if it is in a bucket, fetch its small files into `into`.

    Raises:
      Refused: the bucket holds checkpoints without the record of their run.
      OSError: the bucket refuses or does not answer.
    """
    if not is_address(address):
        return open_local_workdir(pathlib.Path(address))
    bucket, workdir = _locate_in_bucket(address, into)
    if f"{CHECKPOINTS}/" in _fetch(bucket, into) and not (into / FILE).exists():
        raise Refused(
            f"{bucket.address} holds {CHECKPOINTS} but no run of bert_jax ({FILE} is missing); put "
            "the file back, or start the command that trained there again, which restores it from "
            "the newest checkpoint"
        )
    return workdir


def locate_home(address: str, scratch: str, number: int = 0) -> pathlib.Path:
    """Return the local folder for the small files of a workdir in a bucket."""
    words = re.sub(r"[^\w.-]+", "-", address.partition("://")[2]).strip("-")
    digest = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:8]
    process = f".process-{number}" if number else ""
    return expand_home("--scratch", scratch) / f"{words}-{digest}{process}"


def _locate_in_bucket(address: str, home: pathlib.Path) -> tuple[Bucket, Workdir]:
    use_one_driver()
    bucket = Bucket(address.rstrip("/"))
    checkpoints = epath.Path(bucket.address) / CHECKPOINTS
    return bucket, Workdir(home, bucket.address, checkpoints, bucket)


def _fetch(bucket: Bucket, home: pathlib.Path) -> dict[str, int]:
    """Replace the small files of a local folder with those at the top level of the bucket.

    Return all names in the bucket. Raises Refused for a file that is larger than any of a run.
    """
    from bert_jax.tasks.task import THRESHOLD_FILE  # imported here: pre-training has no task

    names = bucket.sizes()
    for path in home.iterdir():
        if path.name in _OF_THE_HOST or _OF_A_PROCESS.fullmatch(path.name):
            continue
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def fetch(name: str) -> None:
        data = bucket.read(name)
        if data is not None:
            (home / name).parent.mkdir(exist_ok=True)
            write_file(home / name, data)

    # The null threshold is part of a SQuAD 2.0 model, although its file is in a folder.
    wanted = [f"{PREDICTIONS}/{THRESHOLD_FILE}"] * (f"{PREDICTIONS}/" in names)
    wanted += [
        name
        for name in names
        if name not in _NOT_PUBLISHED
        and not (name.endswith("/") or name.startswith(".") or _OF_A_PROCESS.fullmatch(name))
    ]
    for name in wanted:
        if names.get(name, 0) > MAX_BYTES:
            raise Refused(
                f"{bucket.address}/{name} has {names[name]:,} bytes, and a file of a run at most "
                f"{MAX_BYTES:,}; move it out of the workdir"
            )
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(fetch, wanted))
    return names


def _list_files_to_publish(home: pathlib.Path, number: int) -> dict[str, tuple[int, int]]:
    """Return the files that process `number` publishes: path below home -> (bytes, mtime in ns)."""
    files = {}
    for top in home.iterdir():
        of_a_process = _OF_A_PROCESS.fullmatch(top.name)
        is_of_this = number == int(of_a_process[2] if of_a_process else 0)
        # A link's target is not part of the run.
        if top.is_symlink() or top.name in _NOT_PUBLISHED or not is_of_this:
            continue
        for path in [top, *top.rglob("*")] if top.is_dir() else [top]:
            is_own = path.is_file() and not path.is_symlink()
            if is_own and path.suffix != ".partial" and not path.name.startswith("."):
                status = path.stat()
                files[str(path.relative_to(home))] = (status.st_size, status.st_mtime_ns)
    return files


def _retry_until(end_secs: float, ask: Callable[[], None]) -> None:
    """Call `ask` again while the bucket does not answer, until end_secs (time.monotonic)."""
    while True:
        try:
            return ask()
        except (ConnectionError, TimeoutError):
            if time.monotonic() >= end_secs:
                raise
        time.sleep(_PAUSE_SECS)


SEEN_SECS = 70.0  # a host may not see a new folder for 60 s (acdirmax of NFS)


def check_all_see(folder: pathlib.Path, limit_secs: float) -> None:
    """Check that all processes share a folder: each must see a file that process 0 writes there.

    Raises:
      Refused: names the processes that do not see it; the same message on every process.
      OSError: on every process, if process 0 cannot write there or one process does not answer
        within limit_secs.
    """
    if processes.count() == 1:
        return
    was_there, hosts = folder.exists(), list[str]()
    marker = folder / f".seen-by-all-{secrets.token_hex(8)}"  # the file that process 0 writes

    def write_marker() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text("whether all processes see this folder\n")
        return marker.name

    try:
        name = processes.ask_first("what to look for in the workdir", write_marker, limit_secs)
        seen = _appears(folder / name, min(SEEN_SECS, limit_secs / 2))
        answer = "" if seen else socket.gethostname()
        hosts = processes.agree("whether all see the workdir", answer, limit_secs)
    finally:
        if os.path.exists(marker):  # False, not an error, where process 0 may not look
            marker.unlink()
            # If all see the folder, keep it: the other processes write there at once.
            if not was_there and (any(hosts) or not hosts):
                folder.rmdir()
    blind = {number: host for number, host in enumerate(hosts) if host}
    if blind:
        raise Refused(
            f"--workdir={folder} is not the same folder on all hosts: "
            f"{processes.name_processes(list(blind))} ({', '.join(sorted(set(blind.values())))}) "
            "cannot see what process 0 wrote there; give a disk that all hosts mount, or gs://"
        )


def _appears(path: pathlib.Path, limit_secs: float) -> bool:
    end_secs = time.monotonic() + limit_secs
    while not path.exists():
        if time.monotonic() >= end_secs:
            return False
        time.sleep(0.5)
    return True
