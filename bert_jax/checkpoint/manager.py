"""Save checkpoints in the background with Orbax, verify them, and restore them on any mesh.

A checkpoint has two items: the state, without vocabulary padding so that any mesh can restore it,
and a receipt with the fingerprint of every array, the loop's counters and the record of the run.

All processes agree on the outcome of each read; process 0 lists and moves folders.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.checkpoint import arrays as arrays_lib
from bert_jax.checkpoint import directory as directory_lib
from bert_jax.checkpoint import reader
from bert_jax.checkpoint.directory import RECEIPT, RECEIPT_FILE, STATE, Folder, Retention
from bert_jax.config import CheckpointConfig
from bert_jax.model.bert import Model
from bert_jax.parallel import processes
from bert_jax.runtime import resume
from bert_jax.train_step.state import TrainState, map_like_params
from data_pipeline.io import Refused
from data_pipeline.io.errors import explain, explain_errors
from data_pipeline.io.small_files import DamagedFile

_AGREE_SECS = 3600.0  # longest wait for the slowest process to read its part

Say = Callable[[str], None]
Content = TypeVar("Content")


class _ReceiptHandler(ocp.AsyncCheckpointHandler):
    """Build and write a receipt in the background, in process 0.

    Orbax's own JSON item needs its content when a save starts, and so would wait for the devices.
    """

    async def async_save(self, directory: epath.Path, args: "_ReceiptSave") -> list[Any]:
        """Start writing."""

        async def write() -> None:
            if processes.number() == 0:
                text = directory_lib.seal(args.make())
                (directory / RECEIPT_FILE).write_text(text)

        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="receipt")]

    def save(self, directory: epath.Path, args: "_ReceiptSave") -> None:
        """Satisfy the interface of Orbax, which calls only async_save."""
        raise NotImplementedError

    def restore(self, directory: epath.Path, args: Any) -> None:
        """Satisfy the interface of Orbax; directory.py reads receipts."""
        raise NotImplementedError


@ocp.args.register_with_handler(_ReceiptHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _ReceiptSave(ocp.args.CheckpointArgs):
    make: Callable[[], Mapping[str, Any]]


class _Manager(ocp.CheckpointManager):
    """Report a failed save in this process before Orbax waits for the other processes.

    The other processes wait for this one to write its part, so they would never learn of the error.
    """

    report: Callable[[], None] = staticmethod(lambda: None)

    def _wait_for_checkpointers(self) -> None:
        try:
            super()._wait_for_checkpointers()
        except Exception:
            self.report()
            raise


@dataclasses.dataclass(frozen=True)
class Damaged:
    """Describe the damage that at least one process found in a checkpoint."""

    problem: str


class Checkpoints:
    """Save and restore the checkpoints of a run in a directory.

    Must be closed: a process that exits without doing so leaves its last save unfinished.
    """

    def __init__(
        self,
        directory: Folder,
        config: CheckpointConfig,
        model: Model,
        run: Mapping[str, Any] | None = None,
        report: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """Open the directory; `run` is the record of the run to store in each receipt.

        With several processes, another thread calls `report` with the error as soon as a save
        fails, as the other processes are waiting for this one.
        """
        self._report = report
        self._model = model
        self._distances = (config.every_steps, config.keep_every_steps)
        self._run = dict(run or {})
        self._directory = directory_lib.make_absolute(directory)
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=Retention(config),
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            lightweight_initialize=True,
        )
        self._open()

    def _open(self) -> None:
        """Open the directory with Orbax, which deletes uncommitted checkpoints."""
        with self._translate_errors("opening the folder of checkpoints"):
            self._manager = _Manager(self._directory, options=self._options)
        self._manager.report = self._report_failure
        # The step of the newest checkpoint, even one being saved; None if there is none.
        self.latest_step, _ = reader.find_readable_step(self._directory)

    def is_due(self, step: int) -> bool:
        """Return whether a save is due after this step."""
        return any(steps > 0 and step % steps == 0 for steps in self._distances)

    def save(
        self, step: int, state: TrainState, numbers: Mapping[str, Any], say: Say = print
    ) -> None:
        """Start a save; return as soon as the state's memory may be reused.

        After a failed save, save again and wait for the result. With several processes the first
        failure is final, as no process knows whether the others failed.

        Raises:
          OSError: both the previous save and this one failed, or this one cannot start.
          Refused: a later checkpoint exists, so Orbax would not keep this one.
        """
        if self.latest_step == step:
            return
        if self.latest_step is not None and step < self.latest_step:
            raise Refused(
                f"step {step:,} cannot be saved in {self._directory}, which holds step "
                f"{self.latest_step:,}; restore that one first"
            )
        try:
            self.wait()
        except OSError as error:
            if processes.count() > 1:
                raise
            say(f"{error}; trying again with step {step:,}")
            with contextlib.suppress(Exception):  # already reported
                self._manager.close()
            directory_lib.remove_uncommitted(self._directory)
            self._open()
            self._begin(step, state, numbers)
            self.wait()
        else:
            self._begin(step, state, numbers)

    def _begin(self, step: int, state: TrainState, numbers: Mapping[str, Any]) -> None:
        unpadded = map_like_params(arrays_lib.describe_unpadded, state, self._model.declared)
        prints = arrays_lib.compute_fingerprints(state, unpadded)
        content = {
            "step": step,
            "saved": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "run": self._run,
            "numbers": dict(numbers),
            "fingerprints": arrays_lib.FINGERPRINTS,
        }

        def make_receipt() -> dict[str, Any]:
            digests = arrays_lib.to_hex(np.asarray(prints))
            kinds = arrays_lib.describe_kinds(unpadded).items()
            leaves = {
                name: f"{kind} {digest}"
                for (name, kind), digest in zip(kinds, digests, strict=True)
            }
            return {**content, "leaves": leaves}

        self.latest_step = step
        saved = map_like_params(arrays_lib.remove_padding, state, self._model.declared)
        items = {STATE: ocp.args.StandardSave(saved), RECEIPT: _ReceiptSave(make_receipt)}
        with self._translate_save_errors():
            # Without force Orbax silently skips a save that it considers not due.
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def _report_failure(self) -> None:
        try:
            with self._translate_save_errors():
                raise
        except OSError as error:
            self._report(error)

    def restore(
        self, abstract_at: Callable[[int], TrainState], say: Say = print
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """Restore the newest intact checkpoint; None if there is none.

        `abstract_at` maps a step to the sizes and shardings of the state after it.

        Every process must call this; all restore the same checkpoint. Newer, damaged checkpoints
        are reported, and quarantined once an older one has been restored.

        Raises:
          Refused: no checkpoint is intact, or the model has different arrays.
          OSError: the checkpoints cannot be read now.
        """
        self.wait()
        directory, problems = self._directory, dict[int, str]()
        for step in list_on_process_0(directory):
            checkpoint = directory / str(step)
            outcome = self._restore_one(checkpoint, abstract_at(step))
            if not isinstance(outcome, Damaged):
                consequence = f"the run resumes from step {step:,}"
                _quarantine(directory, problems, consequence, say)
                self._manager.reload()  # quarantined checkpoints are gone
                self.latest_step = step
                return outcome
            has_files = _ask_process_0(
                checkpoint, functools.partial(directory_lib.holds_files, checkpoint)
            )
            problems[step] = outcome.problem if has_files else ""
        if damages := [*filter(None, problems.values())]:
            raise directory_lib.make_no_intact_checkpoint(directory, damages)
        _quarantine(directory, problems, "the run starts at step 0", say)
        self._manager.reload()
        self.latest_step = None
        return None

    def restore_other(
        self, checkpoint: Folder, abstract: TrainState
    ) -> tuple[TrainState, dict[str, Any]]:
        """Restore the state and counters of another run; the caller has compared its record.

        Nothing is written to the other run. Every process must call this.

        Raises:
          Refused: the checkpoint is damaged, or has different arrays.
          OSError: it cannot be read now.
        """
        path = directory_lib.make_absolute(checkpoint)
        outcome = self._restore_one(path, abstract, is_own=False)
        if isinstance(outcome, Damaged):
            raise Refused(f"{outcome.problem}; branch from another step, or restore a copy")
        return outcome

    def _restore_one(
        self, checkpoint: epath.Path, abstract: TrainState, is_own: bool = True
    ) -> tuple[TrainState, dict[str, Any]] | Damaged:
        """Restore the state and the counters of a checkpoint, with one outcome on all processes."""
        unpadded = map_like_params(arrays_lib.describe_unpadded, abstract, self._model.declared)
        outcome = _agree(checkpoint, lambda: self._read(checkpoint, unpadded, is_own))
        if isinstance(outcome, Damaged):
            return outcome
        arrays, receipt = outcome
        padded = map_like_params(arrays_lib.add_padding, arrays, self._model.declared)
        state = jax.device_put(padded, jax.tree.map(lambda leaf: leaf.sharding, abstract))
        problem = arrays_lib.describe_damage(checkpoint, state, unpadded, receipt["leaves"])
        return Damaged(problem) if problem else (state, receipt["numbers"])

    def _read(
        self, checkpoint: epath.Path, unpadded: TrainState, is_own: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Read the arrays that this process needs, and the receipt.

        Raises Refused if the checkpoint has other arrays than `unpadded`, or, if it is this run's
        own, was saved with other settings.
        """
        receipt = directory_lib.read_receipt(checkpoint)
        arrays_lib.check_arrays(checkpoint, receipt, unpadded)
        differing = resume.list_differences(receipt["run"], self._run) if is_own else {}
        if differing:
            words = resume.describe_differences(differing, "", "this run says")
            raise Refused(
                f"{checkpoint} was saved with another vocabulary or other settings: {words}; "
                "give the data and settings of this checkpoint, or another --workdir"
            )
        return reader.restore_arrays(checkpoint, unpadded), receipt

    def quarantine_after(self, step: int, problem: str, say: Say) -> tuple[list[int], list[int]]:
        """Quarantine the checkpoints of later steps; return (later steps, quarantined steps).

        Nothing is quarantined if no earlier checkpoint would remain. Every process must call this.

        Raises:
          OSError: the last save failed, or a checkpoint cannot be moved.
        """
        self.wait()
        steps = sorted(list_on_process_0(self._directory))
        later = [each for each in steps if each > step]
        if not later or len(later) == len(steps):
            return later, []
        problems = {each: f"{self._directory / str(each)}: {problem}" for each in later}
        consequence = f"step {steps[-len(later) - 1]:,} is the newest now"
        _quarantine(self._directory, problems, consequence, say)
        self._manager.reload()
        return later, later

    def wait(self) -> None:
        """Wait until the last save is committed; raise OSError if it failed."""
        with self._translate_save_errors():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until the last save finishes, and raise its error."""
        try:
            self.wait()
        finally:
            self._manager.close()

    @contextlib.contextmanager
    def closed_after(self, closing: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
        """Close after the block, within the context `closing`; raise the block's error, if any."""
        try:
            yield
        except BaseException as error:
            try:
                with closing:
                    self.close()
            except OSError as closing_error:
                error.add_note(str(closing_error))
            raise
        with closing:
            self.close()

    def _translate_save_errors(self) -> contextlib.AbstractContextManager[None]:
        return self._translate_errors(f"saving the checkpoint of step {self.latest_step}")

    @contextlib.contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        """Translate errors of Orbax and TensorStore into an OSError of one sentence."""
        place = str(self._directory)
        try:
            yield
        except Exception as error:
            explained = explain(error, place, action)
            problem = explained or f"{place}: {action} failed, {directory_lib.shorten_error(error)}"
            raise OSError(f"{problem}; {self._describe_safe_step()}") from error

    def _describe_safe_step(self) -> str:
        """Describe the newest committed step ("step 400 is safe"); failed saves are not listed."""
        try:
            step, _ = reader.find_readable_step(self._directory)
        except OSError:
            return "the checkpoints before it are as they were"
        return "there is no checkpoint yet" if step is None else f"step {step:,} is safe"


def _agree(checkpoint: epath.Path, read: Callable[[], Content]) -> Content | Damaged:
    """Read a checkpoint on every process; return its content, or on all the same damage.

    Each process reads its own parts of the arrays, so one process alone may find a damaged file.

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
            text = directory_lib.describe_error(error, checkpoint)
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


def list_on_process_0(directory: epath.Path) -> list[int]:
    """Return the steps of the checkpoints in a directory, newest first, as process 0 sees them."""
    steps: list[int] = _ask_process_0(directory, lambda: [*directory_lib.find_steps(directory)])
    return steps


def _ask_process_0(folder: epath.Path, ask: Callable[[], Any]) -> Any:
    """Run `ask` on process 0 and broadcast its answer, as the folder may change meanwhile."""
    explained = explain_errors(str(folder), has_tensorstore=True)(lambda: json.dumps(ask()))
    answer = processes.ask_first("what the folder of checkpoints holds", explained, _AGREE_SECS)
    return json.loads(answer)


def _quarantine(
    directory: epath.Path, problems: Mapping[int, str], consequence: str, say: Say
) -> None:
    """Quarantine checkpoints in process 0, given as step -> problem ("": empty folder); print each.

    Raises OSError on every process if process 0 cannot move them.
    """

    def move() -> None:
        for step, problem in problems.items():
            path = directory / str(step)
            moved_to = directory_lib.quarantine(path)
            reason = problem or f"{path} holds no file, so it is not a checkpoint"
            say(f"{reason}; moved to {moved_to}, {consequence}")

    if problems:
        _ask_process_0(directory, move)
