"""Protect the records of an earlier run whose checkpoints cannot be restored.

If the workdir's records show progress but no checkpoint can be restored, the run is refused before
anything changes. With config.checkpoint.fresh, the records are moved to WORKDIR/before-fresh-N/ and
training starts at step 0. The flag has no effect while a checkpoint can be restored, so a later
restart with the same flag resumes.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterable

from bert_jax.checkpoint import directory
from bert_jax.checkpoint.reader import find_newest_step
from bert_jax.logging.metrics_writer import BAD_STEPS, LEFT_OUT, METRICS, SUMMARY
from bert_jax.parallel import processes
from bert_jax.runtime import goodput, run_record
from bert_jax.runtime.workdir import Workdir
from data_pipeline.io import small_files
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.jsonl import read_records
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile

FOLDER = "before-fresh"  # -1, -2 and so on
_STRAYS_NAMED = 3


def is_due(storage: Workdir, fresh: bool, limit_secs: float) -> bool:
    """Return whether old records must be moved before the start; process 0 decides for all.

    Raises Refused if they must be moved but `fresh` (config.checkpoint.fresh) is not set, and
    OSError if process 0 cannot read them now.
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
        if find_newest_step(storage.checkpoints) is not None:
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
    if not run_record.record_path(storage.home).exists():
        return "begins"  # another program's files: overwriting them is refused elsewhere
    return (
        f"refused --workdir={storage.address} holds records of a run ({progress}), and "
        f"{storage.checkpoints} holds no checkpoint to resume from{_strays(storage)}; nothing was "
        "changed: put a checkpoint back there, give another --workdir, or add "
        f"--config.checkpoint.fresh=True, which moves these records to {_free_name(storage)}/ and "
        "starts at step 0"
    )


def _progress_in_words(home: pathlib.Path) -> str:
    """List the records in a folder that show steps after the first save; "" if there are none.

    A file that cannot be read is listed, as it may have shown progress.
    """
    records = []
    for name, read in (
        (METRICS, _last_step_of_lines),
        (BAD_STEPS, _last_step_of_lines),
        (goodput.FILE, _last_step_of_attempts),
        (LEFT_OUT, _ends),
        (SUMMARY, _ends),
        (run_record.record_path(home).name, _last_change),
    ):
        try:
            words = read(home / name)
        except FileNotFoundError:
            continue
        except DamagedFile:
            words = "damaged"
        if words:
            records.append(f"{name}: {words}")
    return ", ".join(records)


def _last_step_of_lines(path: pathlib.Path) -> str:
    return _to_step(line.get("step", 0) for line in read_records(path))


def _last_step_of_attempts(path: pathlib.Path) -> str:
    return _to_step(entry.step for attempt in goodput.read_attempts(path) for entry in attempt)


def _last_change(path: pathlib.Path) -> str:
    changes = small_files.read_object(path).get("changes", [])
    return _to_step(change.get("since_step", 0) for change in changes if isinstance(change, dict))


def _to_step(steps: Iterable[object]) -> str:
    last = max((step for step in steps if isinstance(step, int)), default=0)
    return f"step {last:,}" if last > 0 else ""


def _ends(path: pathlib.Path) -> str:
    return "present" if small_files.read_bytes(path).strip() not in (b"", b"[]", b"{}") else ""


def _strays(storage: Workdir) -> str:
    """List the files in the checkpoint folder, such as 60.orbax-checkpoint-tmp."""
    folder = directory.make_absolute(storage.checkpoints)
    with explain_errors(str(folder)):
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        return ""
    more = f" and {len(names) - _STRAYS_NAMED} more" * (len(names) > _STRAYS_NAMED)
    return f" ({', '.join(names[:_STRAYS_NAMED])}{more}: half-written, renamed or empty)"


def _free_name(storage: Workdir) -> str:
    names = (f"{FOLDER}-{number}" for number in itertools.count(1))
    roots = _roots(storage)
    return next(name for name in names if not any((root / name).exists() for root in roots))


def _roots(storage: Workdir) -> list[directory.Folder]:
    """List the folders with records: the local one, and the user's address if it is in a bucket."""
    top = directory.make_absolute(storage.checkpoints).parent
    return [storage.home] if storage.bucket is None else [storage.home, top]


def quarantine(
    storage: Workdir, vocabulary: str, limit_secs: float, say: Callable[[str], None]
) -> None:
    """Move the records and checkpoints into a new folder in the workdir.

    Process 0 moves; an OSError is raised on every process. Files that show progress are moved last,
    so that the next start still finds them if the process is killed midway.
    """
    answer = ""
    if processes.number() == 0:
        try:
            name = _free_name(storage)
            for root in _roots(storage):
                for record in (*run_record.RECORDS, vocabulary):
                    _move(root / record, root / name / record)
            answer = f"moved {name}"
        except OSError as error:
            answer = f"failed {error}"
    kind, words = _agreed(answer, limit_secs)
    if kind == "failed":
        raise OSError(words)
    say(f"the earlier records are in {storage.address}/{words}; the run starts at step 0")


def _move(path: directory.Folder, target: directory.Folder) -> None:
    with explain_errors(str(path), "setting it aside"):
        if path.exists() or (isinstance(path, pathlib.Path) and path.is_symlink()):
            directory.move(path, target)
