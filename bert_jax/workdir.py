"""Where a run lies: a folder, or an address in a bucket with a folder of this host for small files.

    gs://BUCKET/PATH/checkpoints/   written and read there by Orbax, by all processes
                    /lock           see workdir_lock.py
                    /...            the small files of the run as they were at the last save

All of bert_jax writes the small files to a folder, `home`. Of a bucket they are fetched into it at
the start and published from it, each object whole, before every save: whatever checkpoint a run
goes on from, the records up to it are there. Compiled programs stay on the host.
"""

import dataclasses
import functools
import hashlib
import pathlib
import re
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from etils import epath

from bert_jax import bucket as bucket_lib
from bert_jax import compile_cache, storage_probe, wandb_writer, workdir_lock
from bert_jax.bucket import Bucket
from bert_jax.log import SUMMARY
from bert_jax.receipt import CHECKPOINTS, FILE
from bert_jax.record_files import write_whole
from bert_jax.workdir_lock import Lease
from data_pipeline import small_files
from data_pipeline.files import is_address
from data_pipeline.small_files import DamagedFile

SCRATCH = "~/.cache/bert_jax"
PATIENCE_SECS = 300.0  # a bucket may be late by so much; then the run ends, to be started again
_PAUSE_SECS = 5.0
_THREADS = 8
_ID = ".home"  # of a folder: the lock in the bucket says where the last run had its files
# What processes other than the first write, and publish from their hosts themselves.
_OF_A_PROCESS = re.compile(r"(stacks|libraries)-([1-9]\d*)\.(txt|log)")
_OF_THE_HOST = {compile_cache.FOLDER, wandb_writer.FOLDER, workdir_lock.FILE, _ID}
_NOT_PUBLISHED = {*_OF_THE_HOST, CHECKPOINTS}
_ADDRESS = re.compile(r"gs://[^/]+/+[^/].*")

Ask = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Workdir:
    """The places of a run."""

    home: pathlib.Path  # of the small files
    address: str  # as it was given
    checkpoints: pathlib.Path | epath.Path
    bucket: Bucket | None = None
    number: int = 0  # of this process
    lease: Lease | None = None  # of process 0 on a bucket
    # Size and time of each file as it was published last.
    _published: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def claim(self, is_writer: bool) -> None:
        """Make the folder, see that it can be written, and let no other run write there.

        Of a bucket this was done when it was opened.

        Raises:
          ValueError: another run is at work there.
          OSError: one sentence on what cannot be done there.
        """
        if self.bucket is not None:
            return
        if not is_writer:  # the first process may not have come so far
            self.home.mkdir(parents=True, exist_ok=True)
            return
        storage_probe.check_folder(self.home)
        if self.checkpoints.exists():
            storage_probe.check_folder(pathlib.Path(self.checkpoints))
        workdir_lock.hold_folder(self.home)

    def publish(self, patience_secs: float = PATIENCE_SECS) -> None:
        """Write the small files that have changed to the bucket; nothing where there is none.

        What the bucket does not take at once is given to it again for so long.

        Raises:
          OSError: another run has taken the workdir; the bucket refuses, or does not answer.
        """
        if self.bucket is None:
            return
        until = functools.partial(_until, time.monotonic() + patience_secs)
        if self.lease is not None:
            until(self.lease.check)
        seen = _seen(self.home, self.number)
        if self.number == 0 and SUMMARY not in seen and SUMMARY not in self._published:
            until(functools.partial(self.bucket.delete, SUMMARY))  # of the run as it ended before
        changed = {name: of for name, of in seen.items() if self._published.get(name) != of}
        write = functools.partial(_write, self.bucket, self.home, until)
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(write, changed))
        self._published.update({SUMMARY: (0, 0)} | changed)

    def rows(self) -> list[tuple[str, str]]:
        """What is to be known of the places, a label and a text; nothing where it is one folder."""
        if self.bucket is None:
            return []
        return [("files", f"small ones lie in {self.home}, and in the bucket as of the last save")]

    def close(self) -> None:
        """Let the next run have the workdir."""
        if self.lease is not None:
            self.lease.close()


def local(folder: pathlib.Path) -> Workdir:
    """A workdir that is a folder."""
    return Workdir(folder, str(folder), folder / CHECKPOINTS)


def check_address(address: str) -> None:
    """Raise if a workdir cannot lie there, before anything is looked at.

    Raises:
      ValueError: a file, or an address that is no folder in a bucket of Google's.
    """
    if not is_address(address):
        if pathlib.Path(address).exists() and not pathlib.Path(address).is_dir():
            raise ValueError(f"--workdir={address} is a file; give a new or an empty folder")
    elif not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"--workdir is {address}; it may be a folder, or a folder in a bucket, as "
            "gs://BUCKET/PATH; mount other storage and give that path"
        )


def opened(address: str, scratch: str, number: int) -> Workdir:
    """The workdir at an address; one in a bucket is tested, claimed and its files are here.

    scratch is the folder of this host for files of runs in buckets, number that of this process:
    process 0 alone writes.

    Raises:
      ValueError: another run is at work there, or files there are not of a run.
      OSError: the bucket refuses, or does not answer; or the folder cannot be written.
    """
    if not is_address(address):
        return local(pathlib.Path(address))
    home = home_of(address, scratch, number)
    bucket = _bucket(address)
    storage_probe.check_folder(home)
    if number > 0:
        _fetch(bucket, home)
        return dataclasses.replace(_in_bucket(bucket, home), number=number)
    storage_probe.check_bucket(bucket)
    workdir_lock.hold_folder(home)
    identity = home / _ID
    before = _identity(identity)
    # A new name for these files, theirs once they are whole: whoever is cut off here fetches again.
    here = uuid.uuid4().hex
    lease = Lease(bucket, home=here)
    if not before or lease.before.get("home") != before:
        identity.unlink(missing_ok=True)
        _fetch(bucket, home)
    write_whole(identity, here.encode())
    return dataclasses.replace(_in_bucket(bucket, home), lease=lease)


def _identity(path: pathlib.Path) -> str:
    try:
        return small_files.decode(small_files.read_bytes(path, path.parent), path)
    except (FileNotFoundError, DamagedFile):
        return ""


def fetched(address: str, into: pathlib.Path) -> Workdir:
    """A workdir that is only read; one in a bucket has its small files in a folder then.

    Raises:
      ValueError: files in the bucket are not of a run.
      OSError: the bucket refuses, or does not answer.
    """
    if not is_address(address):
        return local(pathlib.Path(address))
    bucket = _bucket(address)
    _fetch(bucket, into)
    return _in_bucket(bucket, into)


def home_of(address: str, scratch: str, number: int = 0) -> pathlib.Path:
    """A folder of its own for each address, with a name in which a person finds it."""
    words = re.sub(r"[^\w.-]+", "-", address.partition("://")[2]).strip("-")
    digest = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:8]
    process = f".process-{number}" if number else ""
    return pathlib.Path(scratch).expanduser() / f"{words}-{digest}{process}"


def _bucket(address: str) -> Bucket:
    bucket_lib.use_one_driver()
    return Bucket(address.rstrip("/"))


def _in_bucket(bucket: Bucket, home: pathlib.Path) -> Workdir:
    return Workdir(home, bucket.address, epath.Path(bucket.address) / CHECKPOINTS, bucket)


def _fetch(bucket: Bucket, home: pathlib.Path) -> None:
    """Replace the small files of a folder by those in the bucket."""
    names = bucket.names()
    if f"{CHECKPOINTS}/" in names and FILE not in names:
        raise ValueError(
            f"--workdir={bucket.address} holds {CHECKPOINTS} but no run of bert_jax ({FILE} is "
            "missing); give a new or an empty folder"
        )
    for path in home.iterdir():
        if path.name in _OF_THE_HOST or _OF_A_PROCESS.fullmatch(path.name):
            continue
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def fetch(name: str) -> None:
        data = bucket.read(name)
        if data is not None:
            partial = home / f"{name}.partial"
            partial.write_bytes(data)
            partial.replace(home / name)

    wanted = [
        name
        for name in names
        if not name.endswith("/")
        and name not in _NOT_PUBLISHED
        and not name.startswith(".")
        and not _OF_A_PROCESS.fullmatch(name)
    ]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(fetch, wanted))


def _seen(home: pathlib.Path, number: int) -> dict[str, tuple[int, int]]:
    """Size and time of each file that this process is to publish, by its name below home."""
    found = {}
    for top in home.iterdir():
        of_a_process = _OF_A_PROCESS.fullmatch(top.name)
        if top.is_symlink():
            continue  # what lies elsewhere is not the run's
        if top.name in _NOT_PUBLISHED or number != int(of_a_process[2] if of_a_process else 0):
            continue
        for path in [top, *top.rglob("*")] if top.is_dir() else [top]:
            if (
                path.is_file()
                and not path.is_symlink()
                and path.suffix != ".partial"
                and not path.name.startswith(".")
            ):
                status = path.stat()
                found[str(path.relative_to(home))] = (status.st_size, status.st_mtime_ns)
    return found


def _write(bucket: Bucket, home: pathlib.Path, until: Callable[[Ask], None], name: str) -> None:
    until(functools.partial(bucket.write, name, (home / name).read_bytes()))


def _until(end_secs: float, ask: Ask) -> None:
    """Ask the bucket for something, again and again while it does not answer."""
    while True:
        try:
            return ask()
        except (ConnectionError, TimeoutError):
            if time.monotonic() >= end_secs:
                raise
        time.sleep(_PAUSE_SECS)
