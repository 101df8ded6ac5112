"""A folder of checkpoints without its arrays: the receipt in each, and what is none set aside.

CHECKPOINTS/400/receipt/receipt.json says what the checkpoint of step 400 holds and what made it. It
is sealed by its own digest, so that a damaged receipt is told apart from one of another model.
"""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from etils import epath

from bert_jax import storage_errors
from bert_jax.config import CheckpointConfig
from bert_jax.models.bert import Model
from data_pipeline import small_files
from data_pipeline.files import is_address
from data_pipeline.small_files import DamagedFile

Folder: TypeAlias = pathlib.Path | epath.Path  # on a local disk, or gs://

RECEIPT, RECEIPT_FILE = "receipt", "receipt.json"  # the item of a checkpoint, and its one file
DAMAGED = "_damaged"  # ends the name of the folder beside checkpoints/ for what is set aside
_SEAL = "sha256"
_ARRAYS_OF_STATE = 3  # of float32: the parameters and the optimiser's two moments
_OF_DAMAGE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EIO,
)  # not of a try that may be made again


def absolute(directory: Folder) -> epath.Path:
    """As Orbax wants it. epath would make an address into a path below the current folder."""
    path = epath.Path(directory)
    return path if is_address(str(path)) else path.resolve()


def sealed(content: Mapping[str, Any]) -> str:
    """JSON of it, with its digest beside."""
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**json.loads(text), _SEAL: digest}, indent=1) + "\n"


def check_json(paths: Iterable[epath.Path]) -> None:
    """Raise if one of these files is gone or holds no JSON.

    Raises:
      ValueError: names it.
      OSError: it cannot be read now.
    """
    for path in paths:
        _read_json(path)


@contextlib.contextmanager
def as_oserror(place: Folder, what: str) -> Iterator[None]:
    """Turn what a bucket's driver raises, which has no base but Exception, into OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        said = storage_errors.explained(error, str(place), what)
        if said is None:
            raise
        raise said from error


def _read_json(path: epath.Path) -> dict[str, Any]:
    try:
        with as_oserror(path, "reading"):
            return small_files.parse_object(_read_bytes(path), path)
    except OSError as error:
        if not is_damage(error, path):
            raise
        raise ValueError(f"{path} is missing or cannot be read") from error
    except ValueError as error:
        raise ValueError(f"{path} is not what was written") from error


def _read_bytes(path: epath.Path) -> bytes:
    if not is_address(str(path)):
        return small_files.read_bytes(pathlib.Path(path), pathlib.Path(path.parent))
    if path.stat().length > small_files.MAX_BYTES:
        raise DamagedFile(f"{path} is larger than {small_files.MAX_BYTES:,} bytes")
    return path.read_bytes()


def read_receipt(checkpoint: epath.Path) -> dict[str, Any]:
    """The receipt of the checkpoint in a folder named by its step.

    Raises:
      ValueError: it is not there, or not as it was written.
      OSError: it cannot be read now.
    """
    path = checkpoint / RECEIPT / RECEIPT_FILE
    content = _read_json(path)
    digest = content.pop(_SEAL, None)
    if digest != hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest():
        raise ValueError(f"{path} is not what was written")
    small_files.field(content, "leaves", dict, path)
    small_files.field(content, "numbers", dict, path)
    small_files.field(content, "run", dict, path)
    if any(not isinstance(kind, str) for kind in content["leaves"].values()):
        raise DamagedFile(f"{path}: leaves has what is no string")
    step = small_files.field(content, "step", int, path)
    if str(step) != checkpoint.name:
        raise ValueError(f"{path} is of step {step:,}")
    return content


def is_damage(error: Exception, path: epath.Path) -> bool:
    """Whether an error of reading says that files are not as they were written.

    What a disk or a bucket refuses says nothing about them: the next try may be answered. What is
    missing is damage, and what the disk cannot read, whether Python says so or TensorStore.
    """
    if isinstance(error, OSError) and error.errno in _OF_DAMAGE:
        return True
    said = storage_errors.explained(error, str(path), "reading")
    return said is None or isinstance(said, FileNotFoundError) or said.errno in _OF_DAMAGE


def holds_files(folder: epath.Path) -> bool:
    """Whether there is a file in a folder or below; a file holds itself."""
    with as_oserror(folder, "reading"):
        return not folder.is_dir() or any(True for _ in _files(folder))


def _files(folder: epath.Path) -> Iterator[epath.Path]:
    """Every file below a folder; epath's own walk loses the gs:// of what gcsfs finds."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def set_aside(folder: epath.Path) -> epath.Path:
    """Move a folder out of its parent into the one beside it for what is damaged; where it is now.

    In a bucket, which cannot rename, file by file.

    Raises:
      OSError: it cannot be moved now.
    """
    with as_oserror(folder, "setting it aside"):
        return _moved(folder)


def _moved(folder: epath.Path) -> epath.Path:
    beside = folder.parent.parent / (folder.parent.name + DAMAGED)
    beside.mkdir(parents=True, exist_ok=True)
    names = itertools.chain([folder.name], (f"{folder.name}.{i}" for i in itertools.count(1)))
    to = next(beside / name for name in names if not (beside / name).exists())
    move(folder, to)
    return to


def move(path: Folder, to: Folder) -> None:
    """Move a file or folder to a free name; in a bucket, which cannot rename, file by file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if not is_address(str(path)):
        path.rename(to)  # type: ignore[arg-type]
        return
    remote, end = epath.Path(path), epath.Path(to)
    if not remote.is_dir():
        remote.copy(end)
        remote.unlink()
        return
    for file in _files(remote):
        copy = end / file.relative_to(remote)
        copy.parent.mkdir(parents=True, exist_ok=True)
        file.copy(copy)
    remote.rmtree()


def check_space(
    directory: Folder, config: CheckpointConfig, model: Model, total_steps: int
) -> None:
    """Raise if the disk cannot hold the checkpoints that a run keeps, and the next beside them.

    A bucket has no end.

    Raises:
      ValueError: names the disk, what is free and what is needed.
    """
    if is_address(str(directory)):
        return
    there = pathlib.Path(directory).resolve()
    every = config.keep_every_steps
    kept = config.keep + (total_steps // every if every else 0)
    saved = [path for path in there.glob("*") if path.name.isdecimal()]
    missing = max(1, kept + 1 - len(saved))
    while not there.exists():
        there = there.parent
    needed = missing * _ARRAYS_OF_STATE * 4 * model.parameter_count
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ValueError(
            f"{there} has {free / 1e9:,.2f} GB free, the {kept} checkpoints of this run and the "
            f"next one take {needed / 1e9:,.2f} GB; free space, put --workdir on another disk, or "
            "keep fewer with --config.checkpoint.keep=1"
        )


@dataclasses.dataclass(frozen=True)
class Kept:
    """Which checkpoints stay: the newest, and for good those of every so many steps."""

    config: CheckpointConfig

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether each of the checkpoints, oldest first, stays; Orbax asks once one is saved."""
        every = self.config.keep_every_steps
        newest = len(checkpoints) - self.config.keep
        return [
            i >= newest or (every > 0 and one.step > 0 and one.step % every == 0)
            for i, one in enumerate(checkpoints)
        ]
