"""Verify the files of the stores against the digests in their manifests while steps run."""

import contextlib
import hashlib
import json
import os
import pathlib
import socket
import sys
import threading
from collections.abc import Container, Mapping, Sequence
from typing import Any

import jax

from bert_jax.logging.metrics_writer import VERIFIED
from bert_jax.parallel import processes
from bert_jax.runtime.preemption import Stop
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_file
from data_pipeline.store import MANIFEST, Store, reader

BYTES_PER_SEC = 500e6  # read limit during training, to leave disk bandwidth to the input pipeline
_LOWEST_PRIORITY = 19
_CHECKED, _VERIFIED = "data check", "verified"  # topic, and text of a process whose files are right
_LOOK_SECS = 1.0  # time between two reads of the other processes' posts
_MAX_PROBLEMS = 3  # most processes whose damage the error describes
# Disks with the same name on all hosts that mount them; any other disk counts as local.
_NETWORK_DISKS = {"nfs", "nfs4", "lustre", "gpfs", "ceph", "cifs", "beegfs", "fuse.gcsfuse"}


class _Ended(Exception):
    """Signal that the run ended before all files were read."""


class DataCheck:
    """Verify the store against the SHA-256 in its manifest, in a thread. Must be closed.

    Each process hashes the files that it reads, at the lowest priority; processes that read the
    same files divide the work. Size and time of the verified files are recorded in the workdir for
    each process, so a restart reads only changed stores.
    """

    def __init__(
        self, stores: Sequence[Store], workdir: pathlib.Path, stop: Stop, limit_secs: float
    ) -> None:
        """Start the thread, unless there is no store or all files are already verified.

        All processes must call this; limit_secs is how long to wait for them.
        """
        self._path, self._stop = workdir / VERIFIED, stop
        self._problem = ""
        self._ended, self._hurries = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        if not stores:
            return
        number = processes.number()
        known = self._read_known() if number == 0 else []
        answer = json.dumps([socket.gethostname(), _mark_files(stores), known])
        answers = processes.agree("which files of the store they read", answer, limit_secs)
        self._hosts, marks, knowns = zip(*map(json.loads, answers), strict=True)
        self._marks: Sequence[dict[str, Any]] = marks
        is_known = [mark in knowns[0] for mark in marks]
        sharers = [i for i, mark in enumerate(marks) if mark == marks[number]]
        files = marks[number]["files"]
        own = set() if is_known[number] else _share_out(files, sharers.index(number), len(sharers))
        if not is_known[number] or (number == 0 and not all(is_known)):
            self._thread = threading.Thread(
                target=self._run, args=(stores, own), daemon=True, name="data check"
            )
            self._thread.start()
        elif number > 0:
            processes.post(_CHECKED, _VERIFIED)

    def problem(self, limit_secs: float, waits: bool = False) -> str:
        """Return the damage found so far, "" if none; the same on every process.

        All processes must call this at the same steps. With `waits`, verify all files first.
        """
        if waits and self._thread is not None:
            self._hurries.set()
            self._thread.join()
        name = "whether the data are as they were built"
        problems = list(filter(None, processes.agree(name, self._problem, limit_secs)))
        more = len(problems) - _MAX_PROBLEMS
        problems[_MAX_PROBLEMS:] = [f"and {more:,} more processes found damage"] * (more > 0)
        return "; ".join(problems)

    def close(self) -> None:
        """Stop the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, stores: Sequence[Store], own: Container[pathlib.Path]) -> None:
        if sys.platform == "linux":  # priorities are per thread there
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        # A file that cannot be read fails in the step that needs it.
        with contextlib.suppress(_Ended, OSError, jax.errors.JaxRuntimeError):
            outcome = ""
            try:
                outcome = self._verify(stores, own)
            finally:
                processes.post(_CHECKED, outcome)
            if processes.number() == 0:
                self._record(outcome)

    def _verify(self, stores: Sequence[Store], own: Container[pathlib.Path]) -> str:
        """Verify this process's files; return _VERIFIED, or "" if one is wrong or was changed."""
        try:
            for store in stores:
                reader.verify(store.directory, store.manifest, self._advance, own)
        except Refused as error:
            number = processes.number()
            name = f"process {number} ({self._hosts[number]}): " * (processes.count() > 1)
            self._problem = f"{name}{error}"
            self._stop.ask()
            return ""
        is_unchanged = _mark_files(stores) == self._marks[processes.number()]
        return _VERIFIED if is_unchanged else ""

    def _record(self, outcome: str) -> None:
        """Record the verified files after all processes have verified their share."""
        outcomes = {0: outcome}
        while len(outcomes) < processes.count():
            if self._ended.wait(_LOOK_SECS):
                return
            outcomes |= processes.read_posts(_CHECKED)
        if all(each == _VERIFIED for each in outcomes.values()):
            entries = {
                number: {"host": host, **marks}
                for number, (host, marks) in enumerate(zip(self._hosts, self._marks, strict=True))
            }
            write_file(self._path, f"{json.dumps(entries)}\n".encode())

    def _advance(self, read_bytes: int) -> None:
        if self._ended.is_set():
            raise _Ended
        if not self._hurries.is_set():
            self._hurries.wait(read_bytes / BYTES_PER_SEC)

    def _read_known(self) -> list[dict[str, Any]]:
        """Return the files that an earlier start of the run verified, for each of its processes."""
        try:
            known = small_files.read_object(self._path, self._path.parent)
        except (OSError, Refused):
            return []
        return [
            {name: entry[name] for name in entry.keys() - {"host"}}
            for entry in known.values()
            if isinstance(entry, dict)
        ]


def _share_out(
    files: Mapping[str, Sequence[int] | None], number: int, count: int
) -> set[pathlib.Path]:
    """Return the files that process `number` of `count` hashes; shares have about equal bytes."""
    shares: list[set[pathlib.Path]] = [set() for _ in range(count)]
    share_bytes = [0] * count
    sizes = {name: status[0] if status else 0 for name, status in files.items()}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = share_bytes.index(min(share_bytes))
        share_bytes[least] += sizes[name]
        shares[least].add(pathlib.Path(name))
    return shares[number]


def _mark_files(stores: Sequence[Store]) -> dict[str, Any]:
    """Identify the files of the stores by disk, size, time and inode, and their manifests.

    Equal for two processes only if both read the same files. Inodes of a network disk are left
    out, as hosts may number them differently.
    """
    manifests, disks, files = hashlib.sha256(), [], dict[str, Any]()
    for store in stores:
        manifests.update(small_files.read_bytes(store.directory / MANIFEST, store.directory))
        disk, is_shared = _identify_disk(store.directory)
        disks.append(disk)
        for path in reader.list_verified_files(store.directory, store.manifest):
            files[str(path)] = None
            if path.exists():
                status = path.stat()
                inode = 0 if is_shared else status.st_ino
                files[str(path)] = [status.st_size, status.st_mtime_ns, inode]
    return {"manifest": manifests.hexdigest(), "disks": disks, "files": files}


def _identify_disk(folder: pathlib.Path) -> tuple[str, bool]:
    """Return an identifier of a folder's disk, and whether hosts share the disk.

    Identify a network disk by its mount source, a local one by the host's boot and device.
    """
    device = folder.stat().st_dev
    boot = socket.gethostname()
    with contextlib.suppress(OSError, ValueError, IndexError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, system = line.partition(" - ")
            kind, source = system.split()[:2]
            is_ours = mount.split()[2] == f"{os.major(device)}:{os.minor(device)}"
            if is_ours and kind in _NETWORK_DISKS:
                return f"{kind} {source}", True
    return f"{boot} {device}", False


def describe_damage(
    problem: str, started_step: int, step: int, saved: Sequence[int], quarantined: Sequence[int]
) -> str:
    """Build the message that ends a run with damaged data.

    The run started at started_step and reached `step`. `saved` are the steps of the checkpoints
    written since its start, `quarantined` the steps of those moved to checkpoints_damaged/.
    """
    trained = "no step was trained on them"
    if step > started_step:
        trained = f"steps {started_step + 1:,} to {step:,} were trained on them"
    if quarantined:
        listed = ", ".join(f"{number:,}" for number in quarantined)
        trained += f", and their checkpoints ({listed}) are in checkpoints_damaged/"
    remedy = "once the data are restored, the same command resumes from the newest checkpoint"
    if set(saved) - set(quarantined):
        trained += ", and no checkpoint of an earlier step is left"
        remedy = "once the data are restored, start over in another --workdir"
    elif started_step:
        remedy += "; if they were damaged before this start too, start over"
    return f"the data of this run are damaged: {problem}; {trained}; {remedy}"
