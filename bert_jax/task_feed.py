"""What a fine-tuning run reads: the rows of a task, and what is evaluated between its steps.

Dimensions: N examples, B examples of a batch, S sequence, C classes.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import checkpoint_vocabulary, metrics
from bert_jax.finetune_config import FinetuneConfig, TaskOptions
from bert_jax.inference import collected
from bert_jax.run_feed import BatchShape, HostBatch
from bert_jax.screen import Screen
from bert_jax.tasks.objectives import PACKED, TERM
from bert_jax.tasks.task import Task
from data_pipeline import step_packing
from data_pipeline.finetune import EncodedRows, EvaluationBatch, ExampleStream, by_length
from data_pipeline.vocab import Vocabulary

# Of config.data what says where examples lie, and which are only predicted; all else says what is
# in the examples that the run learns from and is judged by.
_OPTIONS_OF_A_RUN = ("dir", "test_file")


def _fixed_options(options: TaskOptions) -> dict[str, Any]:
    return {
        f"data.{name}": value
        for name, value in dataclasses.asdict(options).items()
        if name not in _OPTIONS_OF_A_RUN
    }


def _sha256(rows: EncodedRows) -> str:
    hashed = hashlib.sha256()
    arrays = [rows.token_ids, rows.offsets, *rows.labels.values(), *rows.token_labels.values()]
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


class TaskFeed:
    """Batches of a task's training split, as pure functions of the step.

    Examples of one row each are packed (docs/decisions/0039): there a phase of `config` says how
    many rows of which length hold the examples of any step. The others are a row each, or the
    choices of a question, cut to the longest of their batch.
    """

    def __init__(
        self, task: Task, vocabulary: Vocabulary, config: FinetuneConfig, unit: int = 1
    ) -> None:
        """config is that of finetuning.resolved; the rows of a batch are a multiple of unit."""
        self.task, self.vocabulary, self.unit = task, vocabulary, unit
        self.pad_id = vocabulary.special_ids["pad"]
        rows = task.splits["train"]
        self.positions_of_model = config.model.max_position_embeddings
        order = config.data.order_seed, config.batch_size, self.pad_id, self.positions_of_model
        self._stream = ExampleStream(rows, *order)
        self._digest = _sha256(rows)
        self._packed = None
        if task.kind in PACKED:
            (phase,) = config.phases
            self._packed = step_packing.PackedSteps(self._stream, phase.steps, unit)
            found = self._packed.packing
            phase = dataclasses.replace(phase, seq_len=found.seq_len, batch_size=found.rows)
            config = dataclasses.replace(config, phases=(phase,))
        self.config = config

    @property
    def learns(self) -> str:
        """What a run on it does."""
        return f"fine-tuning on {self.task.name}"

    @property
    def origin(self) -> pathlib.Path:
        """The folder of the task's files."""
        return pathlib.Path(self.config.data.dir or "/").expanduser()

    @property
    def vocab_path(self) -> pathlib.Path:
        """The file of the checkpoint's vocabulary."""
        return self.vocabulary.path

    def vocabulary_record(self) -> dict[str, Any]:
        """Name, size, case and SHA-256 of the checkpoint's vocabulary."""
        return checkpoint_vocabulary.record(self.vocabulary, self.vocab_path.name)

    def fixed(self) -> dict[str, Any]:
        """What a run that goes on must keep: the task, its examples, what it began with."""
        return {
            "init": self.config.init,
            "batch_size": self.config.batch_size,
            "step_packing_version (of this bert_jax)": step_packing.VERSION,
            **_fixed_options(self.config.data),
            "data (digest of the training examples)": self._digest[:12],
        }

    def fixed_by_default(self) -> dict[str, Any]:
        """The options that a receipt may be older than."""
        return _fixed_options(TaskOptions())

    def in_a_receipt(self) -> dict[str, Any]:
        """The examples, and what the layer on top of the encoder means."""
        task = self.task
        return {
            "task": {
                "name": task.name,
                "kind": task.kind,
                "classes": task.classes,
                "head_width": task.head_width,
                "labels": list(task.labels),
                "mean": task.mean,
                "deviation": task.deviation,
                "digest": self._digest,
            }
        }

    def advice(self) -> str:
        """What makes its batches come sooner."""
        return "Batches of a task are cut out of memory: other work keeps this machine's cores busy"

    def batch_shapes(self, index: int, first_step: int) -> list[BatchShape]:
        """One, where examples are packed; else one for each length that batches are cut to."""
        steps = range(first_step, self.config.phases[index].steps)
        rows, batch_size = self.task.splits["train"], self.config.batch_size
        if self._packed is not None:
            every_row = np.arange(self._packed.packing.rows)
            of_first = self._packed.batches(first_step, first_step + 1, every_row)
            return [_shape_of(batch) for batch in of_first]
        lengths = sorted({self._stream.seq_len(step) for step in steps})
        nothing = np.full(batch_size, -1, np.int64)
        return [_shape_of(rows.batch(nothing, seq_len, self.pad_id)) for seq_len in lengths]

    def train_batches(
        self, index: int, first_step: int, rows: np.ndarray
    ) -> Generator[HostBatch, None, None]:
        """Rows of the batches from a step to the last."""
        source = self._stream if self._packed is None else self._packed
        return source.batches(first_step, self.config.phases[index].steps, rows)

    def positions(self, step: int) -> np.ndarray:
        """int64[B]: positions in the stream of the batch of a step, counted from 1."""
        return (step - 1) * self.config.batch_size + np.arange(self.config.batch_size)

    def located(self, index: int, positions_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch of each position, and the example's number in the training split."""
        del index
        return self._stream.locate(positions_B)


def _shape_of(batch: HostBatch) -> BatchShape:
    return {name: (array.shape, array.dtype.type) for name, array in batch.items()}


class TaskPhase:
    """The one phase of a fine-tuning run: its development sets, and how they are scored."""

    def __init__(self, feed: TaskFeed) -> None:
        self.task, config = feed.task, feed.config
        shards = feed.unit // config.micro_batches
        batch_size = -(-config.batch_size // feed.unit) * shards
        self._batches: list[tuple[str, EvaluationBatch]] = [
            (split, batch)
            for split in self.task.dev_splits
            for batch in by_length(
                self.task.splits[split], batch_size, feed.pad_id, feed.positions_of_model
            )
        ]
        (phase,) = config.phases
        rows, examples = self.task.splits["train"], config.batch_size
        self.of_a_step = {
            "seq_len": float(phase.seq_len),
            "rows_per_step": float(phase.batch_size * rows.rows_per_example),
            "examples_per_step": float(examples),
            "epochs": phase.steps * examples / rows.examples,
        }
        self.baseline = {
            f"majority_dev_{name}": score for name, score in self.task.baseline.items()
        }
        self.examples_per_row = examples / phase.batch_size
        self.heldout_examples = sum(
            self.task.splits[name].examples for name in self.task.dev_splits
        )
        self.heldout_batches = [batch.fields for _, batch in self._batches]
        # Of each development set by the last evaluation, which is of the weights a run ends with.
        self.dev_logits: dict[str, np.ndarray] = {}

    def heldout_scores(self, results: Sequence[Any]) -> dict[str, float]:
        """The loss of each development set, named after it, and its scores, as dev_accuracy."""
        scores = {}
        for split in self.task.dev_splits:
            of_split = [
                (batch, result)
                for (name, batch), result in zip(self._batches, results, strict=True)
                if name == split
            ]
            total: Mapping[str, float] = {}
            for _, result in of_split:
                total = metrics.add(total, metrics.flat(_sums_alone(result)))
            scores[f"{split}_loss"] = metrics.read(total)[f"{TERM}_loss"]
            logits = collected(
                (_of_examples(batch, result["outputs"]) for batch, result in of_split),
                self.task.splits[split].examples,
            )["logits"]
            self.dev_logits[split] = logits
            for name, score in self.task.score(split, logits).items():
                scores[f"dev_{name}"] = score
        return scores

    def show(self, screen: Screen, step: int, scores: dict[str, float]) -> None:
        """Print them, the one that decides first and beside its baseline."""
        screen.scores_line(step, self.task.main_record, scores, self.baseline)


def _sums_alone(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("terms", "weights")}


def _of_examples(
    batch: EvaluationBatch, logits: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Without the rows that fill up, which stand behind the others."""
    examples = int((batch.index_B >= 0).sum())
    return batch.index_B[:examples], {"logits": logits[:examples]}
