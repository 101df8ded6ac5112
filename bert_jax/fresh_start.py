"""A run whose records show progress never begins again over them.

Where they do and no checkpoint can be restored the run is refused before anything is changed. With
config.checkpoint.fresh its records are moved to WORKDIR/before-fresh-N/ and it starts at step 0; as
that applies only where no checkpoint can be restored, a restart with the same flag resumes.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence

from bert_jax import checkpoint_folder, processes, receipt, wall_time
from bert_jax.checkpoint_reading import newest_step
from bert_jax.exit_codes import Refused
from bert_jax.log import BAD_STEPS, LEFT_OUT, METRICS, SUMMARY
from bert_jax.record_files import read_lines
from bert_jax.workdir import Workdir
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

FOLDER = "before-fresh"  # -1, -2 and so on
_STRAYS_NAMED = 3


def is_due(storage: Workdir, fresh: bool, limit_secs: float) -> bool:
    """Whether old records are to be set aside, as process 0 sees it; the same on every process.

    Nothing is changed. `fresh` is config.checkpoint.fresh.

    Raises:
      Refused: they would have to be, and fresh is not set.
      OSError: process 0 cannot read them now.
    """
    kind, words = _agreed(_look(storage, fresh) if processes.number() == 0 else "", limit_secs)
    if kind == "refused":
        raise Refused(words)
    if kind == "unread":
        raise OSError(words)
    return kind == "fresh"


def _agreed(answer: str, limit_secs: float) -> tuple[str, str]:
    first = processes.agree("whether the run begins at step 0", answer, limit_secs)[0]
    kind, _, words = first.partition(" ")
    return kind, words


def _look(storage: Workdir, fresh: bool) -> str:
    try:
        if newest_step(storage.checkpoints) is not None:
            return "resumes"
        progress = _progress_in_words(storage.home)
    except Refused as error:  # there are checkpoints, and none can be read
        return "fresh" if fresh else f"refused {error}"
    except OSError as error:
        return f"unread {error}"
    if not progress:
        return "begins"
    if fresh:
        return "fresh"
    if not (storage.home / receipt.FILE).exists():
        return "begins"  # no run of ours: refused by name where it would be written over
    return (
        f"refused --workdir={storage.address} holds records of a run ({progress}), and "
        f"{storage.checkpoints} holds no checkpoint to resume from{_strays(storage)}; nothing was "
        "changed: put a checkpoint back there, give another --workdir, or add "
        f"--config.checkpoint.fresh=True, which moves these records to {_free_name(storage)}/ and "
        "starts at step 0"
    )


def _progress_in_words(home: pathlib.Path) -> str:
    """What shows that the run in a folder took steps after its first save, "" where nothing does.

    A file that cannot be understood counts: it may have shown progress.
    """
    found = []
    for name, read in (
        (METRICS, _last_step_of_lines),
        (BAD_STEPS, _last_step_of_lines),
        (wall_time.FILE, _last_step_of_attempts),
        (LEFT_OUT, _ends),
        (SUMMARY, _ends),
        (receipt.FILE, _last_change),
    ):
        try:
            words = read(home / name)
        except FileNotFoundError:
            continue
        except DamagedFile:
            words = "damaged"
        if words:
            found.append(f"{name}: {words}")
    return ", ".join(found)


def _last_step_of_lines(path: pathlib.Path) -> str:
    return _to_step(line.get("step", 0) for line in read_lines(path))


def _last_step_of_attempts(path: pathlib.Path) -> str:
    return _to_step(entry.step for attempt in wall_time.read(path) for entry in attempt)


def _last_change(path: pathlib.Path) -> str:
    changes = small_files.read_object(path).get("changes", [])
    return _to_step(change.get("since_step", 0) for change in changes if isinstance(change, dict))


def _to_step(steps: Iterable[object]) -> str:
    last = max((step for step in steps if isinstance(step, int)), default=0)
    return f"step {last:,}" if last > 0 else ""


def _ends(path: pathlib.Path) -> str:
    return "present" if small_files.read_bytes(path).strip() not in (b"", b"[]", b"{}") else ""


def _strays(storage: Workdir) -> str:
    """Name what lies where checkpoints would, such as 60.orbax-checkpoint-tmp."""
    folder = checkpoint_folder.absolute(storage.checkpoints)
    with checkpoint_folder.as_oserror(folder, "reading"):
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        return ""
    more = f" and {len(names) - _STRAYS_NAMED} more" * (len(names) > _STRAYS_NAMED)
    return f" ({', '.join(names[:_STRAYS_NAMED])}{more}: half-written, renamed or empty)"


def _free_name(storage: Workdir) -> str:
    top = _top(storage)
    names = (f"{FOLDER}-{number}" for number in itertools.count(1))
    return next(
        name for name in names if not any((at / name).exists() for at in {storage.home, top})
    )


def _top(storage: Workdir) -> checkpoint_folder.Folder:
    """The folder, or the address in a bucket, that a person knows as the workdir."""
    return checkpoint_folder.absolute(storage.checkpoints).parent


def set_aside(
    storage: Workdir, vocabulary: str, limit_secs: float, say: Callable[[str], None]
) -> None:
    """Move the records and checkpoints into a new folder of the workdir.

    Process 0 moves, the others wait. The lines that show progress go last, so that whoever is
    killed in between finds them at the next start.

    Raises:
      OSError: something cannot be moved, on every process alike.
    """
    answer = ""
    if processes.number() == 0:
        try:
            name = _free_name(storage)
            _move_all(storage, [*receipt.RECORDS, vocabulary], name)
            answer = f"moved {name}"
        except OSError as error:
            answer = f"failed {error}"
    kind, words = _agreed(answer, limit_secs)
    if kind == "failed":
        raise OSError(words)
    say(f"the records of before are in {storage.address}/{words}; the run starts at step 0")


def _move_all(storage: Workdir, names: Sequence[str], name: str) -> None:
    for root in [storage.home] if storage.bucket is None else [storage.home, _top(storage)]:
        for record in names:
            path = root / record
            with checkpoint_folder.as_oserror(path, "setting it aside"):
                if path.exists() or (isinstance(path, pathlib.Path) and path.is_symlink()):
                    checkpoint_folder.move(path, root / name / record)
