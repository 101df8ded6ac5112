"""Begin a run that has no checkpoint: protect what is in its workdir, or branch from another run.

A branch begins with the weights, optimizer and position of another run, its trunk, at a step. The
configs of both must produce the same steps up to this step (runtime/history.py). The checkpoint and
earlier records are copied; from then on the branch is a run like any other.

If the workdir's records show progress but no checkpoint can be restored, the run is refused before
anything changes. With config.checkpoint.fresh, the records are moved to WORKDIR/before-fresh-N/ and
training starts at step 0. The setting has no effect while a checkpoint can be restored, so a
later restart with the same flags resumes.
"""

import contextlib
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from bert_jax import config as config_lib
from bert_jax.checkpoint import directory, reader
from bert_jax.checkpoint.reader import find_newest_step
from bert_jax.logging.metrics_writer import BAD_STEPS, LEFT_OUT, METRICS, SUMMARY
from bert_jax.parallel import processes
from bert_jax.runtime import goodput, history, run_record
from bert_jax.runtime.resume import compare_settings
from bert_jax.runtime.run_record import BRANCH, CHECKPOINTS, CONVERTED
from bert_jax.runtime.workdir import Workdir
from bert_jax.trainer import bad_steps
from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import write_file, write_json
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.jsonl import read_lines, read_records
from data_pipeline.io.small_files import DamagedFile, parse_record

FOLDER = "before-fresh"  # -1, -2 and so on
_STRAYS_NAMED = 3


def is_due(storage: Workdir, fresh: bool, limit_secs: float) -> bool:
    """Return whether old records must be moved before the start; process 0 decides for all.

    Raises Refused if records must be moved but `fresh` (config.checkpoint.fresh) is not set, and
    OSError if process 0 cannot read the records.
    """
    name = "whether the run begins at step 0"
    return bool(processes.ask_first(name, lambda: "yes" * _is_due(storage, fresh), limit_secs))


def _is_due(storage: Workdir, fresh: bool) -> bool:
    try:
        if find_newest_step(storage.checkpoints) is not None:
            return False
        progress = _describe_progress(storage.home)
    except Refused:  # there are checkpoints, and none can be read
        if not fresh:
            raise
        return True
    if fresh or not progress:
        return bool(progress)
    if not (storage.home / run_record.FILE).exists():
        return False  # another program's files: overwriting them is refused elsewhere
    raise Refused(
        f"--workdir={storage.address} holds records of a run ({progress}), and "
        f"{storage.checkpoints} holds no checkpoint to resume from{_describe_strays(storage)}; "
        "nothing was changed: put a checkpoint back there, give another --workdir, or add "
        f"--config.checkpoint.fresh=True, which moves these records to {_find_free_name(storage)}/ "
        "and starts at step 0"
    )


def _describe_progress(home: pathlib.Path) -> str:
    """Name the records in a folder that show steps of its run; "" if there are none.

    Records up to the first step of a branch are copies of its trunk's. A damaged file is listed
    too, as it may have recorded progress.
    """
    records = []
    trunk: Trunk | None = None
    with contextlib.suppress(FileNotFoundError, DamagedFile):
        trunk = find_branch(small_files.read_object(home / run_record.FILE), None, str(home))
    first_step = trunk.step if trunk else 0
    for name in (METRICS, BAD_STEPS, goodput.FILE, LEFT_OUT, SUMMARY, run_record.FILE):
        try:
            steps = _list_steps(home / name)
            last = max((step for step in steps if isinstance(step, int)), default=0)
            words = f"step {last:,}" if last > first_step else ""
        except FileNotFoundError:
            continue
        except DamagedFile:
            words = "damaged"
        if words:
            records.append(f"{name}: {words}")
    return ", ".join(records)


def _list_steps(path: pathlib.Path) -> list[object]:
    """List the step entries of a record; a record of another program may have any type there."""
    if path.name in (METRICS, BAD_STEPS):
        return [line.get("step", 0) for line in read_records(path)]
    if path.name == goodput.FILE:
        return [entry.step for attempt in goodput.read_attempts(path) for entry in attempt]
    if path.name == LEFT_OUT:
        return [each.through_step for each in bad_steps.read_left_out(path.parent)]
    record = small_files.read_object(path)
    if path.name == SUMMARY:
        return [record.get("steps", 0)]
    changes = small_files.field(record, "changes", list, path, [])
    return [change.get("since_step", 0) for change in changes if isinstance(change, dict)]


def _describe_strays(storage: Workdir) -> str:
    """Name what a folder without a complete checkpoint holds, such as 60.orbax-checkpoint-tmp."""
    folder = directory.make_absolute(storage.checkpoints)
    with explain_errors(str(folder)):
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    listed = small_files.list_names(names, _STRAYS_NAMED)
    return f" ({listed}: half-written, renamed or empty)" if names else ""


def _find_free_name(storage: Workdir) -> str:
    names = (f"{FOLDER}-{number}" for number in itertools.count(1))
    roots = _list_roots(storage)
    return next(name for name in names if not any((root / name).exists() for root in roots))


def _list_roots(storage: Workdir) -> list[directory.Folder]:
    """List the folders with records: the local one, and the workdir in a bucket, if it is there."""
    top = directory.make_absolute(storage.checkpoints).parent
    return [storage.home] if storage.bucket is None else [storage.home, top]


def quarantine(
    storage: Workdir, vocabulary: str, limit_secs: float, say: Callable[[str], None]
) -> None:
    """Move the records and checkpoints into a new folder in the workdir.

    Process 0 moves; an OSError is raised on every process. Files that show progress are moved last,
    so that the next start still finds them if the process is killed midway.
    """

    def move_all() -> str:
        name = _find_free_name(storage)
        for root in _list_roots(storage):
            for record in (*run_record.RECORDS, vocabulary):
                _move(root / record, root / name / record)
        return name

    name = processes.ask_first("where the earlier records are", move_all, limit_secs)
    say(f"the earlier records are in {storage.address}/{name}; the run starts at step 0")


def _move(path: directory.Folder, target: directory.Folder) -> None:
    with explain_errors(str(path), "setting it aside"):
        if path.exists() or (isinstance(path, pathlib.Path) and path.is_symlink()):
            directory.move(path, target)


@dataclasses.dataclass(frozen=True)
class Trunk:
    """Name the checkpoint of another run that a branch begins with."""

    run: str  # the address of its workdir; absolute
    step: int

    @property
    def checkpoints(self) -> epath.Path:
        """Return the folder of the other run's checkpoints."""
        return directory.make_absolute(epath.Path(self.run)) / CHECKPOINTS

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"


def parse_trunk(text: str) -> Trunk:
    """Parse --branch=RUN@STEP. Raises Refused for any other form."""
    place, _, step = text.removeprefix("orbax:").rpartition("@")
    if not place or not (step.isascii() and step.isdecimal() and len(step) <= 18):
        raise Refused(
            f"--branch is {text!r}; give the workdir of a run and the step of a checkpoint there, "
            "such as runs/base@4000"
        )
    return Trunk(place if is_address(place) else str(pathlib.Path(place).resolve()), int(step))


def find_branch(
    record: Mapping[str, Any] | None, asked: Trunk | None, address: str
) -> Trunk | None:
    """Return the trunk in a run record, or for a new run (`record` is None) the trunk asked for.

    Raises:
      Refused: the recorded run does not branch from the trunk asked for.
    """
    if record is None:
        return asked
    entry = small_files.field(record, BRANCH, dict, address, {})
    trunk = parse_record(entry, Trunk, f"{address}: {BRANCH!r}") if entry else None
    if asked not in (None, trunk):
        kind = "a run that began at step 0" if trunk is None else f"a branch of {trunk}"
        raise Refused(
            f"--branch is {asked}, but --workdir={address} holds {kind}; give another "
            "--workdir, or leave --branch out to resume the run there"
        )
    return trunk


def check_branch(
    trunk: Trunk, config: config_lib.RunConfig, record: Mapping[str, Any]
) -> tuple[str, ...]:
    """Check that a run may begin with a checkpoint of another run.

    `record` is the record of the new run. Returns a phrase for each difference in code, packages,
    devices or number of processes: such a difference may change bits, but does not forbid a branch.

    Raises:
      Refused: there is no such checkpoint, or the runs differ in a step up to it.
    """
    receipt = _read_trunk(trunk)
    total = config_lib.total_steps(config)
    if trunk.step > total:
        raise Refused(
            f"--branch is {trunk}, and the phases of this config end after step {total:,}; give "
            "the last phase more steps, or branch from an earlier step"
        )
    ours = json.loads(json.dumps(record))
    theirs = receipt["run"]
    path = trunk.checkpoints / str(trunk.step)
    histories = history.read_history(theirs, path), history.read_history(ours, "this config")
    numbers = receipt["numbers"]
    has_bad_steps = bool(numbers.get("skipped_steps") or numbers.get("left_out_steps"))
    if difference := history.find_first_difference(*histories, trunk.step, has_bad_steps):
        raise Refused(
            f"--branch is {trunk}, but {difference.describe()}; a branch may only change what "
            "comes after its step: use the value of that run, or branch from an earlier step"
        )
    differing = compare_settings(_list_conditions(theirs), _list_conditions(ours))
    return tuple(f"{name} {before}, here {now}" for name, (before, now) in differing.items())


def _list_conditions(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the code, packages, devices and number of processes in the record of a run."""
    code = record["code"]
    commit = f"{str(code.get('commit'))[:12]} (files {code.get('source_digest')})"
    others = {name: record[name] for name in ("devices", "processes")}
    return {**code.get("packages", {}), "commit": commit, **others}


def _read_trunk(trunk: Trunk, flag: str = "--branch") -> dict[str, Any]:
    """Read the receipt of the checkpoint that a branch begins with; its run may still be training.

    Raises:
      Refused: there is no such checkpoint, or no run can branch from it.
    """
    steps = directory.find_steps(trunk.checkpoints)
    if trunk.step not in steps:
        listed = small_files.list_names([f"{step:,}" for step in sorted(steps)])
        raise Refused(
            f"{flag} is {trunk}, and {trunk.run} has no checkpoint of step {trunk.step:,}; "
            + (f"it has checkpoints of steps {listed}" if steps else "it has none")
        )
    receipt = directory.read_receipt(steps[trunk.step])
    record = run_record.check_record(receipt["run"], steps[trunk.step])
    if CONVERTED in record or "store" not in record:
        kind = (
            f"converted from {record[CONVERTED]} without an optimizer"
            if CONVERTED in record
            else f"of {record.get('learns', 'another kind')}"
        )
        raise Refused(
            f"{flag} is {trunk}, a checkpoint {kind}, from which no run can continue; "
            f"--config.init=orbax:{trunk.run} begins with its weights"
        )
    for change in record.get("changes", []):
        setting, since = change["setting"], change["since_step"]
        if not since or history.is_free(setting):  # the newest config reproduces the run
            continue
        raise Refused(
            f"{flag} is {trunk}, a checkpoint of a run whose config.{setting} was changed after "
            f"step {since:,}, so no single config reproduces it; branch from an earlier step, or "
            "from a run whose settings were not changed"
        )
    return receipt


def copy_records(trunk: Trunk, home: pathlib.Path) -> None:
    """Copy the trunk's metrics, bad steps and ranges left out, up to the step of the branch.

    Raises:
      DamagedFile: a record of the trunk is damaged.
    """
    from bert_jax.interop import load  # imported here: most runs read no other run

    with load.open_workdir(trunk.run) as source:
        for name, read in ((METRICS, read_lines), (BAD_STEPS, read_records)):
            lines = [line for line in read(source.home / name) if line["step"] <= trunk.step]
            if lines:
                text = "".join(f"{json.dumps(line)}\n" for line in lines)
                write_file(home / name, text.encode())
        ranges = bad_steps.read_left_out(source.home)
        if earlier := [each for each in ranges if each.through_step <= trunk.step]:
            bad_steps.write_left_out(home, earlier)


def publish(trunk: Trunk, folder: pathlib.Path) -> None:
    """Copy a checkpoint with its optimizer, position and record into an empty folder.

    The folder becomes a workdir that other runs may branch from.

    Raises:
      Refused: no run can branch from the checkpoint, or a copied array is damaged.
      OSError: a file cannot be read or written.
    """
    from bert_jax.interop import load  # imported here: most runs read no other run

    record = _read_trunk(trunk, "--from")["run"]
    name, step = record["vocabulary"]["file"], str(trunk.step)
    directory.copy(trunk.checkpoints / step, epath.Path(folder) / CHECKPOINTS / step)
    with load.open_workdir(trunk.run) as source:
        words = small_files.join_inside(source.home, name)
        write_file(small_files.join_inside(folder, name), small_files.read_bytes(words))
    copy_records(trunk, folder)
    write_json(folder / run_record.FILE, record)
    reader.verify_arrays(folder / CHECKPOINTS, trunk.step)
