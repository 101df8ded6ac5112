"""The checkpoints of a run through Orbax: saved in the background, verified, restored anywhere.

A checkpoint holds the state without the rows that pad the vocabulary, so it can be restored onto a
mesh that pads it otherwise, and a receipt: the fingerprint of every array, the loop's plain
numbers, and what the run was made of.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax import (
    checkpoint_arrays,
    checkpoint_choice,
    checkpoint_folder,
    checkpoint_reading,
    checkpoint_vocabulary,
    fingerprint,
    processes,
    storage_errors,
)
from bert_jax.checkpoint_choice import Say, Tried, in_short
from bert_jax.checkpoint_folder import RECEIPT, RECEIPT_FILE, Folder, Kept
from bert_jax.checkpoint_reading import STATE
from bert_jax.config import CheckpointConfig
from bert_jax.exit_codes import Refused
from bert_jax.models.bert import Model
from bert_jax.state import TrainState, map_like_params


class _ReceiptHandler(ocp.AsyncCheckpointHandler):
    """Writes a receipt that is made where it is written: in the background, by process 0.

    Orbax's own JSON item has to be there whole when a save begins, and would wait for the devices.
    """

    async def async_save(self, directory: epath.Path, args: "_ReceiptSave") -> list[Any]:
        """Begin to write it."""

        async def write() -> None:
            if processes.number() == 0:
                text = checkpoint_folder.sealed(args.make())
                (directory / RECEIPT_FILE).write_text(text)

        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="receipt")]

    def save(self, directory: epath.Path, args: "_ReceiptSave") -> None:
        """Orbax asks for it, and calls async_save."""
        raise NotImplementedError

    def restore(self, directory: epath.Path, args: Any) -> None:
        """Likewise; a receipt is read by checkpoint_folder."""
        raise NotImplementedError


@ocp.args.register_with_handler(_ReceiptHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _ReceiptSave(ocp.args.CheckpointArgs):
    make: Callable[[], Mapping[str, Any]]


class Checkpoints:
    """The checkpoints in a folder, of a run that saves and restores them.

    Must be closed: a process that exits without leaves its last save unfinished.
    """

    def __init__(
        self,
        directory: Folder,
        config: CheckpointConfig,
        model: Model,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        """run is what each receipt says of the run that saves: receipt.of_run."""
        self._model = model
        self._every_steps = config.every_steps
        self._run = dict(run or {})
        self._directory = checkpoint_folder.absolute(directory)
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=Kept(config),
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            lightweight_initialize=True,
        )
        self._open()

    def _open(self) -> None:
        """Go on from what is there; what is half written goes."""
        with self._storing("opening the folder of checkpoints"):
            self._manager = ocp.CheckpointManager(self._directory, options=self._options)
        self._newest, _ = checkpoint_reading.readable(self._directory)

    @property
    def latest_step(self) -> int | None:
        """Step of the newest checkpoint, be it still on its way to the disk; None without any."""
        return self._newest

    def due(self, step: int) -> bool:
        """Whether a run is to be saved after this many steps."""
        return step % self._every_steps == 0

    def save(
        self, step: int, state: TrainState, numbers: Mapping[str, Any], say: Say = print
    ) -> None:
        """Begin to save; returns as soon as the state's memory may be reused.

        Where the save before this one has failed this one is its second try, and waited for. Of
        several processes none knows how the others fared: there the first failure is the last.

        Raises:
          OSError: the save before this one failed, and this one too; or this one cannot begin.
          ValueError: there is a later checkpoint, beside which this one would not be kept.
        """
        if self._newest == step:
            return
        if self._newest is not None and step < self._newest:
            raise ValueError(
                f"step {step:,} cannot be saved in {self._directory}, which holds step "
                f"{self._newest:,}; restore that one first"
            )
        try:
            self.wait()
        except OSError as error:
            if processes.count() > 1:
                raise
            say(f"{error}; once more with step {step:,}")
            with contextlib.suppress(Exception):  # it is the error that was just said
                self._manager.close()
            self._open()
            self._begin(step, state, numbers)
            self.wait()
        else:
            self._begin(step, state, numbers)

    def _begin(self, step: int, state: TrainState, numbers: Mapping[str, Any]) -> None:
        logical = map_like_params(checkpoint_arrays.logical, state, self._model.declared)
        prints = checkpoint_arrays.fingerprints(state, logical)
        content = {
            "step": step,
            "saved": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "run": self._run,
            "numbers": dict(numbers),
            "fingerprints": fingerprint.VERSION,
        }

        def receipt() -> dict[str, Any]:
            words = fingerprint.in_words(np.asarray(prints))
            leaves = zip(checkpoint_arrays.kinds(logical).items(), words, strict=True)
            return {**content, "leaves": {name: f"{kind} {one}" for (name, kind), one in leaves}}

        self._newest = step
        unpadded = map_like_params(checkpoint_arrays.without_padding, state, self._model.declared)
        items = {STATE: ocp.args.StandardSave(unpadded), RECEIPT: _ReceiptSave(receipt)}
        with self._saving():
            # Without force Orbax leaves out, in silence, what it takes for not due.
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def restore(
        self, abstract: TrainState, say: Say = print
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest checkpoint that is whole, laid out as abstract says; None without any.

        Every process must call it; all take the same one. What is newer and damaged is said, and
        set aside once an older one has been restored.

        Raises:
          Refused: there are checkpoints and none is whole, or of a model that has other arrays.
          OSError: they cannot be read now.
        """
        self.wait()
        found = checkpoint_choice.choose(
            self._directory,
            lambda: list(checkpoint_reading.folders(self._directory)),
            lambda checkpoint: self._tried(checkpoint, abstract),
            say,
        )
        self._manager.reload()  # what was set aside is no longer there
        self._newest = None if found is None else found[0]
        return None if found is None else found[1]

    def quarantine_after(
        self, step: int, problem: str, say: Say = print
    ) -> tuple[list[int], list[int]]:
        """Set the checkpoints of later steps aside; return their steps, and those set aside.

        That is none where no earlier one would be left. Every process must call it.

        Raises:
          OSError: the last save failed, or they cannot be moved.
        """
        self.wait()
        moved = checkpoint_choice.quarantine_after(
            self._directory,
            lambda: list(checkpoint_reading.folders(self._directory)),
            step,
            problem,
            say,
        )
        self._manager.reload()
        return moved

    def wait(self) -> None:
        """Until the last save is committed.

        Raises:
          OSError: it failed.
        """
        with self._saving():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until the last save is finished; raises its error."""
        try:
            self.wait()
        finally:
            self._manager.close()

    @contextlib.contextmanager
    def closed_after(self, closing: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
        """Close after the block, within `closing`; what ended the block is raised before that."""
        try:
            yield
        except BaseException as error:
            try:
                with closing:
                    self.close()
            except OSError as of_closing:
                error.add_note(str(of_closing))
            raise
        with closing:
            self.close()

    def _saving(self) -> contextlib.AbstractContextManager[None]:
        return self._storing(f"saving the checkpoint of step {self._newest}")

    @contextlib.contextmanager
    def _storing(self, what: str) -> Iterator[None]:
        """Turn what Orbax and TensorStore raise into an OSError of one sentence."""
        place = str(self._directory)
        try:
            yield
        except Exception as error:
            said = storage_errors.explained(error, place, what)
            words = said or f"{place}: {what} failed, {in_short(error)}"
            raise OSError(f"{words}; {self._safe()}") from error

    def _safe(self) -> str:
        """Up to where nothing is lost; a save that failed is in no list of what is there."""
        try:
            step, _ = checkpoint_reading.readable(self._directory)
        except OSError:
            return "the checkpoints before it are as they were"
        return "there is no checkpoint yet" if step is None else f"step {step:,} is safe"

    def _tried(self, checkpoint: epath.Path, abstract: TrainState) -> Tried:
        """The state and numbers of a checkpoint, or what of it is damaged; on every process alike.

        Raises:
          Refused: it is of another model.
          OSError: it cannot be read now.
        """
        logical = map_like_params(checkpoint_arrays.logical, abstract, self._model.declared)

        def read() -> tuple[Any, dict[str, Any]]:
            receipt = checkpoint_folder.read_receipt(checkpoint)
            checkpoint_arrays.check(checkpoint, receipt, logical)
            problem = checkpoint_vocabulary.difference(receipt["run"], self._run)
            if problem:
                raise Refused(f"{checkpoint} {problem}")
            return checkpoint_reading.arrays_of(checkpoint, logical), receipt

        read_here, problem = checkpoint_choice.on_all(checkpoint, read)
        if read_here is None:
            return None, problem
        arrays, receipt = read_here
        padded = map_like_params(checkpoint_arrays.with_padding, arrays, self._model.declared)
        state = jax.device_put(padded, jax.tree.map(lambda leaf: leaf.sharding, abstract))
        problem = checkpoint_arrays.unverified(checkpoint, state, logical, receipt["leaves"])
        return (None, problem) if problem else ((state, receipt["numbers"]), "")
