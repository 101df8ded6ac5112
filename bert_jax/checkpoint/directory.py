"""Manage a checkpoint directory: metadata, retention, quarantine of damaged steps.

CHECKPOINTS/400/receipt/receipt.json records the arrays of step 400 and the run that saved it. It
contains its own digest, so a damaged receipt is never mistaken for one of another model.
"""

import dataclasses
import errno
import hashlib
import itertools
import json
import pathlib
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import orbax.checkpoint as ocp
from etils import epath

from bert_jax.config import CheckpointConfig
from bert_jax.model.bert import Model
from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import is_address
from data_pipeline.io.errors import explain, explain_errors, is_transient
from data_pipeline.io.small_files import DamagedFile

Folder: TypeAlias = pathlib.Path | epath.Path  # a local path or a gs:// address

RECEIPT, RECEIPT_FILE = "receipt", "receipt.json"  # the item of a checkpoint, and its one file
STATE = "state"  # the item of the arrays
DAMAGED = "_damaged"  # suffix of the quarantine folder next to checkpoints/
UNCOMMITTED = ".orbax-checkpoint-tmp"  # a part of the name of an unfinished checkpoint
NEWEST_KEPT = 2  # the second serves if the newest checkpoint is damaged
_SEAL = "sha256"
_STEP = re.compile(r"0|[1-9][0-9]*")  # 070 is no step
_ARRAY = re.compile(r'"([^"/]+)/(?:\.zarray|[\d.]+)"')  # a part of TensorStore's messages
_FILE = re.compile(r'(?:local file|GCS object) "([^"]+)"')
_MAX_PROBLEMS = 4  # most damaged checkpoints that an error describes
_ARRAYS_OF_STATE = 3  # float32 arrays per parameter: the weights and two moments
# Errors that mean damaged files; others may be transient.
_DAMAGE_CODES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)
# The process ran out of memory or file descriptors.
_PROCESS_CODES = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def make_absolute(directory: Folder) -> epath.Path:
    """Make a local path absolute; keep a bucket's address, which epath would treat as relative."""
    path = epath.Path(directory)
    return path if is_address(str(path)) else path.resolve()


def locate(directory: Folder, step: int) -> epath.Path:
    """Return the absolute path of a checkpoint."""
    return make_absolute(directory) / str(step)


def find_steps(directory: epath.Path) -> dict[int, epath.Path]:
    """Return the paths of the committed checkpoints in a directory by step, newest first."""
    if not directory.is_dir():
        return {}
    with explain_errors(str(directory), "listing"):
        paths = ocp.path.step.checkpoint_steps_paths(directory)
    steps = {int(path.name): path for path in paths if _STEP.fullmatch(path.name)}
    return dict(sorted(steps.items(), reverse=True))


def seal(content: Mapping[str, Any]) -> str:
    """Return the JSON of a receipt, including a digest of its content."""
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**json.loads(text), _SEAL: digest}, indent=1) + "\n"


def read_json(path: epath.Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
      DamagedFile: it is missing or invalid.
      OSError: it cannot be read now.
    """
    try:
        with explain_errors(str(path), "reading"):
            return small_files.parse_object(_read_bytes(path), path)
    except OSError as error:
        if not is_damage(error, path):
            raise
        raise DamagedFile(f"{path} is missing or cannot be read") from error
    except ValueError as error:
        raise DamagedFile(f"{path} is not what was written") from error


def _read_bytes(path: epath.Path) -> bytes:
    if not is_address(str(path)):
        return small_files.read_bytes(pathlib.Path(path), pathlib.Path(path.parent))
    if path.stat().length > small_files.MAX_BYTES:
        raise DamagedFile(f"{path} is larger than {small_files.MAX_BYTES:,} bytes")
    return path.read_bytes()


def read_receipt(checkpoint: epath.Path) -> dict[str, Any]:
    """Read the receipt of a checkpoint, whose folder is named by its step.

    Raises:
      DamagedFile: it is missing or damaged.
      OSError: it cannot be read now.
    """
    path = checkpoint / RECEIPT / RECEIPT_FILE
    content = read_json(path)
    digest = content.pop(_SEAL, None)
    if digest != hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest():
        raise DamagedFile(f"{path} is not what was written")
    small_files.field(content, "leaves", dict, path)
    small_files.field(content, "numbers", dict, path)
    small_files.field(content, "run", dict, path)
    if any(not isinstance(kind, str) for kind in content["leaves"].values()):
        raise DamagedFile(f"{path}: an entry of 'leaves' is not a string")
    step = small_files.field(content, "step", int, path)
    if str(step) != checkpoint.name:
        raise DamagedFile(f"{path} is of step {step:,}")
    return content


def is_damage(error: Exception, path: epath.Path) -> bool:
    """Return whether a read error means that files are damaged, rather than a transient failure.

    Missing files and unreadable sectors are damage, whether Python or TensorStore reports them.
    Other errors of a disk or bucket are transient, as the next attempt may succeed, and so is a
    lack of memory, on a host or a device.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in _DAMAGE_CODES:
        return True
    lacks_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
    if lacks_memory or number in _PROCESS_CODES or is_transient(error, str(path)):
        return False
    explained = explain(error, str(path), "reading")
    if explained is None or isinstance(explained, FileNotFoundError):
        return True
    return explained.errno in _DAMAGE_CODES


def shorten_error(error: Exception) -> str:
    """Return the message of an error on one line, without TensorStore's long details."""
    text = " ".join(str(error).split())
    if isinstance(error, LookupError) or not text:
        text = f"{type(error).__name__} {text}".strip()
    return text if len(text) <= 200 else f"{text[:197]}..."


def describe_error(error: Exception, checkpoint: epath.Path) -> str:
    """Describe a read error, with the array and its file if TensorStore names them."""
    text = " ".join(str(error).split())
    array, files = _ARRAY.search(text), _FILE.findall(text)
    if array and files:
        return f"{checkpoint}: array {array[1]} cannot be read from {files[-1]}"
    short = shorten_error(error)
    return short if str(checkpoint) in short else f"{checkpoint}: {short}"


def holds_files(folder: epath.Path) -> bool:
    """Return whether a folder contains a file at any depth; True for a file itself."""
    with explain_errors(str(folder), "reading"):
        return not folder.is_dir() or any(True for _ in _walk_files(folder))


def _walk_files(folder: epath.Path) -> Iterator[epath.Path]:
    """Yield every file below a folder; epath's own walk loses the gs:// of gcsfs paths."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _walk_files(path)
        else:
            yield path


def quarantine(folder: epath.Path) -> epath.Path:
    """Move a damaged folder into CHECKPOINTS_damaged next to its parent; return its new path."""
    with explain_errors(str(folder), "setting it aside"):
        damaged_folder = folder.parent.parent / (folder.parent.name + DAMAGED)
        damaged_folder.mkdir(parents=True, exist_ok=True)
        names = itertools.chain([folder.name], (f"{folder.name}.{i}" for i in itertools.count(1)))
        target = next(
            damaged_folder / name for name in names if not (damaged_folder / name).exists()
        )
        move(folder, target)
        return target


def move(path: Folder, target: Folder) -> None:
    """Move a file or folder to an unused name; in a bucket, file by file as it cannot rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not is_address(str(path)):
        path.rename(target)  # type: ignore[arg-type]
        return
    remote, end = epath.Path(path), epath.Path(target)
    if not remote.is_dir():
        remote.copy(end)
        remote.unlink()
        return
    copy(remote, end)
    remote.rmtree()


def copy(folder: epath.Path, target: epath.Path) -> None:
    """Copy the files of a folder, which may be in a bucket, into a new one."""
    with explain_errors(str(folder), "copying"):
        for file in _walk_files(folder):
            end = target / file.relative_to(folder)
            end.parent.mkdir(parents=True, exist_ok=True)
            file.copy(end)


class NoIntactCheckpoint(Refused):
    """Signal that a run has begun, but none of its checkpoints can be restored."""


def make_no_intact_checkpoint(directory: Folder, problems: Sequence[str]) -> NoIntactCheckpoint:
    """Build the error for a directory where no checkpoint can be restored."""
    named = "; ".join([*problems[:_MAX_PROBLEMS], *["..."] * (len(problems) > _MAX_PROBLEMS)])
    return NoIntactCheckpoint(
        f"{directory} holds {len(problems)} checkpoints and none is intact ({named}); nothing was "
        "changed: put an intact one there, train in a new --workdir, or add "
        "--config.checkpoint.fresh=True, which moves the records of this run aside and starts at "
        "step 0"
    )


def remove_uncommitted(directory: epath.Path, timeout_secs: float = 5.0) -> None:
    """Remove the folders of a failed save from a local directory, until timeout_secs have passed.

    Threads of the failed save may write files for a moment more. Orbax tries to remove such folders
    only once, and would then fail with "Directory not empty".
    """
    if is_address(str(directory)):
        return
    ends = time.monotonic() + timeout_secs
    for folder in pathlib.Path(directory).glob(f"*{UNCOMMITTED}*"):
        while folder.exists() and time.monotonic() < ends:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)


def check_space(
    directory: Folder, config: CheckpointConfig, model: Model, done_steps: int, total_steps: int
) -> None:
    """Raise Refused if the disk has no room for the checkpoints that a run keeps, plus one more.

    Checkpoints before done_steps need no room: they are not saved again. Buckets are not checked.
    """
    if is_address(str(directory)):
        return
    folder, kept = pathlib.Path(directory).resolve(), NEWEST_KEPT
    saved = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    if every := config.keep_every_steps:
        kept += total_steps // every - max(done_steps - 1, 0) // every
        saved = [step for step in saved if step >= done_steps or step % every]
    missing = max(1, kept + 1 - len(saved))
    while not folder.exists():
        folder = folder.parent
    needed = missing * _ARRAYS_OF_STATE * 4 * model.parameter_count
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Refused(
            f"{folder} has {free / 1e9:,.2f} GB free, but this run keeps {kept} checkpoints from "
            f"step {done_steps:,} on while it saves the next, and the {missing} not there yet take "
            f"{needed / 1e9:,.2f} GB; free space, put --workdir on another disk, or keep fewer "
            "with a larger --config.checkpoint.keep_every_steps, or 0"
        )


@dataclasses.dataclass(frozen=True)
class Retention:
    """Keep the two newest checkpoints, and all at multiples of keep_every_steps."""

    config: CheckpointConfig

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return whether to keep each checkpoint, oldest first; Orbax calls this after a save."""
        every = self.config.keep_every_steps
        newest = len(checkpoints) - NEWEST_KEPT
        return [
            i >= newest or (every > 0 and saved.step > 0 and saved.step % every == 0)
            for i, saved in enumerate(checkpoints)
        ]
