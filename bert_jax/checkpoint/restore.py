"""Agree with the other processes whether a checkpoint is whole or damaged.

Each process reads its own parts of the arrays, so a damaged file may be found by one process only.
All processes therefore agree on the outcome of each read; process 0 lists and moves folders.
Checkpoints.restore in manager.py is the caller.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from etils import epath

from bert_jax.checkpoint import directory as directory_lib
from bert_jax.checkpoint.directory import Folder
from bert_jax.parallel import processes
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile

_ARRAY = re.compile(r'"([^"/]+)/(?:\.zarray|[\d.]+)"')  # a part of TensorStore's messages
_FILE = re.compile(r'(?:local file|GCS object) "([^"]+)"')
_AGREE_SECS = 3600.0  # longest wait for the slowest process to read its part
_MAX_PROBLEMS = 4  # most damaged checkpoints that an error describes

Say = Callable[[str], None]
Content = TypeVar("Content")


@dataclasses.dataclass(frozen=True)
class Damaged:
    """Describe the damage that at least one process found in a checkpoint."""

    problem: str


class NoIntactCheckpoint(Refused):
    """Signal that checkpoints exist, but none can be restored."""


def make_no_intact_checkpoint(directory: Folder, problems: Sequence[str]) -> NoIntactCheckpoint:
    """Build the error for a directory where no checkpoint can be restored."""
    named = "; ".join([*problems[:_MAX_PROBLEMS], *["..."] * (len(problems) > _MAX_PROBLEMS)])
    return NoIntactCheckpoint(
        f"{directory} holds {len(problems)} checkpoints and none is intact ({named}); nothing was "
        "changed: put an intact one there, train in a new --workdir, or add "
        "--config.checkpoint.fresh=True, which moves the records of this run aside and starts at "
        "step 0"
    )


def agree(checkpoint: epath.Path, read: Callable[[], Content]) -> Content | Damaged:
    """Read a checkpoint on every process; return its content, or on all the same damage.

    Raises, on every process:
      Refused: `read` raised it on one process.
      OSError: one process cannot read the checkpoint now.
    """
    content, kind, text = None, "whole", ""
    try:
        content = read()
    except Exception as error:
        if isinstance(error, Refused) and not isinstance(error, DamagedFile):
            kind, text = "refused", str(error)
        else:
            kind = "damaged" if directory_lib.is_damage(error, checkpoint) else "unread"
            text = describe_error(error, checkpoint)
    answers = processes.agree(f"checkpoint {checkpoint.name}", f"{kind} {text}", _AGREE_SECS)
    outcomes = [answer.partition(" ")[::2] for answer in answers]
    for kind, text in outcomes:
        if kind == "refused":
            raise Refused(text)
        if kind == "unread":
            raise OSError(text)
    problem = next((text for kind, text in outcomes if kind == "damaged"), "")
    if problem or content is None:
        return Damaged(problem)
    return content


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


def list_on_process_0(directory: epath.Path) -> list[int]:
    """Return the steps of the checkpoints in a directory, newest first, as process 0 sees them."""
    names = _ask_process_0(
        directory, lambda: ",".join(map(str, directory_lib.find_steps(directory)))
    )
    return [int(name) for name in names.split(",") if name]


def _ask_process_0(folder: epath.Path, ask: Callable[[], str]) -> str:
    """Run `ask` on process 0 and broadcast its answer, as the folder may change meanwhile."""
    explained = explain_errors(str(folder), has_tensorstore=True)(ask)
    return processes.ask_first("what the folder of checkpoints holds", explained, _AGREE_SECS)


def holds_files(folder: epath.Path) -> bool:
    """Return whether process 0 sees a file in a folder."""
    return _ask_process_0(folder, lambda: str(directory_lib.holds_files(folder))) == "True"


def quarantine(
    directory: epath.Path, problems: Mapping[int, str], consequence: str, say: Say
) -> None:
    """Quarantine checkpoints in process 0, given as step -> problem ("": empty folder); print each.

    Raises OSError on every process if process 0 cannot move them.
    """

    def move() -> str:
        for step, problem in problems.items():
            path = directory / str(step)
            moved_to = directory_lib.quarantine(path)
            reason = problem or f"{path} holds no file, so it is not a checkpoint"
            say(f"{reason}; moved to {moved_to}, {consequence}")
        return ""

    if problems:
        _ask_process_0(directory, move)
