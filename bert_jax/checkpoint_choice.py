"""Which checkpoint a run goes on from: the newest that is whole, the same one on every process.

One process alone may meet a damaged file, since each reads its own parts of the arrays. So each try
ends in an agreement, and whatever one process alone can find out process 0 tells the others.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from etils import epath

from bert_jax import checkpoint_folder, processes
from bert_jax.checkpoint_folder import Folder
from bert_jax.exit_codes import Refused

_ARRAY = re.compile(r'"([^"/]+)/(?:\.zarray|[\d.]+)"')  # in a message of TensorStore
_FILE = re.compile(r'(?:local file|GCS object) "([^"]+)"')
_AGREE_SECS = 3600.0  # that one process may take longer than another to read its part

Say = Callable[[str], None]
Tried = tuple[Any, str]  # what was restored and "", or None and what is damaged in words
Read = TypeVar("Read")


def choose(
    directory: epath.Path,
    listed: Callable[[], list[int]],
    tried: Callable[[epath.Path], Tried],
    say: Say,
) -> tuple[int, Any] | None:
    """Step of the newest checkpoint that is whole and what was restored of it; None without any.

    listed gives the steps in the folder, newest first. What is newer and damaged is said and set
    aside by process 0, once an older one has been restored; so are folders without a file.

    Raises:
      Refused: there are checkpoints and none is whole.
      OSError: they cannot be read, or not be set aside.
    """
    problems = dict[int, str]()  # "" of what is no checkpoint
    for step in _of_first(directory, lambda: ",".join(map(str, listed()))).split(","):
        if not step:
            break
        restored, problem = tried(directory / step)
        if not problem:
            _set_aside(directory, problems, f"the run goes on from step {int(step):,}", say)
            return int(step), restored
        problems[int(step)] = problem if _holds_files(directory / step) else ""
    if any(problems.values()):
        raise none_is_whole(directory, [text for text in problems.values() if text])
    _set_aside(directory, problems, "the run begins anew", say)
    return None


def quarantine_after(
    directory: epath.Path, listed: Callable[[], list[int]], step: int, problem: str, say: Say
) -> tuple[list[int], list[int]]:
    """Have process 0 set the checkpoints of later steps aside.

    Returns, on every process, the later steps and those of them that were set aside: none where no
    checkpoint of this step or an earlier one would be left.

    Raises:
      OSError: process 0 cannot list or move them.
    """
    found = _of_first(directory, lambda: ",".join(map(str, listed()))).split(",")
    steps = sorted(int(name) for name in found if name)
    later = [one for one in steps if one > step]
    if not later or len(later) == len(steps):
        return later, []
    words = {one: f"{directory / str(one)}: {problem}" for one in later}
    newest = max(set(steps) - set(later))
    _set_aside(directory, words, f"step {newest:,} is the newest now", say)
    return later, later


class NoneIsWhole(Refused):
    """There are checkpoints, but none can be restored."""


def none_is_whole(directory: Folder, problems: Sequence[str]) -> NoneIsWhole:
    """What to raise where there are checkpoints, but none to go on from."""
    return NoneIsWhole(
        f"{directory} holds {len(problems)} checkpoints and none is whole ({'; '.join(problems)}); "
        "nothing was changed: put a whole one there, train in a new --workdir, or add "
        "--config.checkpoint.fresh=True, which sets the records of this run aside and starts at "
        "step 0"
    )


def on_all(checkpoint: epath.Path, read: Callable[[], Read]) -> tuple[Read | None, str]:
    """What read returns and "", or None and what is damaged, where it is so on any process.

    Raises, on every process alike:
      Refused: read has raised it on one.
      OSError: on one the checkpoint cannot be read now.
    """
    found, kind, text = None, "whole", ""
    try:
        found = read()
    except Refused as error:
        kind, text = "refused", str(error)
    except Exception as error:
        kind = "damaged" if checkpoint_folder.is_damage(error, checkpoint) else "unread"
        text = in_words(error, checkpoint)
    answers = processes.agree(f"checkpoint {checkpoint.name}", f"{kind} {text}", _AGREE_SECS)
    told = [answer.partition(" ")[::2] for answer in answers]
    for kind, text in told:
        if kind == "refused":
            raise Refused(text)
        if kind == "unread":
            raise OSError(text)
    problem = next((text for kind, text in told if kind == "damaged"), "")
    return (None, problem) if problem else (found, "")


def in_short(error: Exception) -> str:
    """The words of an error on one line, without the pages that TensorStore adds."""
    words = " ".join(str(error).split())
    if isinstance(error, LookupError) or not words:
        words = f"{type(error).__name__} {words}".strip()
    return words if len(words) <= 200 else f"{words[:197]}..."


def in_words(error: Exception, checkpoint: epath.Path) -> str:
    """What of a checkpoint cannot be read: the array and the file, where TensorStore names them."""
    text = " ".join(str(error).split())
    array, files = _ARRAY.search(text), _FILE.findall(text)
    if array and files:
        return f"{checkpoint}: array {array[1]} cannot be read from {files[-1]}"
    short = in_short(error)
    return short if str(checkpoint) in short else f"{checkpoint}: {short}"


def _of_first(folder: epath.Path, ask: Callable[[], str]) -> str:
    """What process 0 finds in a folder, on every process: they may see it at other moments.

    Raises:
      OSError: process 0 cannot ask, on every process alike; what is no trouble of storage is
        raised there as it is, once the others know.
    """
    answer, of_ours = " ", None
    if processes.number() == 0:
        try:
            with checkpoint_folder.as_oserror(folder, "reading"):
                answer = f"found {ask()}"
        except Exception as error:
            answer = f"failed {in_short(error)}"
            of_ours = None if isinstance(error, OSError) else error
    first = processes.agree("what the folder of checkpoints holds", answer, _AGREE_SECS)[0]
    kind, _, text = first.partition(" ")
    if of_ours is not None:
        raise of_ours
    if kind == "failed":
        raise OSError(text)
    return text


def _holds_files(folder: epath.Path) -> bool:
    return _of_first(folder, lambda: str(checkpoint_folder.holds_files(folder))) == "True"


def _set_aside(directory: epath.Path, problems: Mapping[int, str], so: str, say: Say) -> None:
    def move() -> str:
        for step, problem in problems.items():
            path = directory / str(step)
            to = checkpoint_folder.set_aside(path)
            what = problem or f"{path} holds no file, so it is no checkpoint"
            say(f"{what}; moved to {to}, {so}")
        return ""

    if problems:
        _of_first(directory, move)
