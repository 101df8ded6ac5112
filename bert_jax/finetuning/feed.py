"""Feed a fine-tuning run: batches of the training split, and the development sets to evaluate.

Dimensions: N examples, B examples of a batch, S sequence, C classes.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import phase_start, total_steps
from bert_jax.config.finetune_schema import FinetuneRun
from bert_jax.finetuning.objectives import PACKED, TERM
from bert_jax.inference.batches import collect, copy_to_host
from bert_jax.logging.console import Screen
from bert_jax.runtime import run_record
from bert_jax.runtime.run_record import Provenance
from bert_jax.tasks.task import Task
from bert_jax.train_step import metrics
from bert_jax.trainer.feed import BatchShape, HostBatch, RunPhase, StepRows, find_shape
from data_pipeline.io.address import expand_home
from data_pipeline.labeled import packing
from data_pipeline.labeled.rows import EncodedRows, EvaluationBatch, ExampleStream, batch_by_length
from data_pipeline.vocab import Vocabulary, name_copy

# Options of config.data that a resumed run may change: the folder, and examples that are only
# predicted. All others determine the examples for training and evaluation.
_CHANGEABLE_OPTIONS = ("dir", "test_file")


def _sha256(rows: EncodedRows) -> str:
    hashed = hashlib.sha256()
    arrays = [rows.token_ids, rows.offsets, *rows.labels.values(), *rows.token_labels.values()]
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


class TaskFeed:
    """Make the batches of a task's training split as pure functions of the step.

    Examples of the kinds in PACKED share rows (decision 39): the phases of `config` then have the
    number and length of rows that hold the examples of any step. Other examples are a row each, or
    the choices of a question, cut to the longest of their batch.
    """

    def __init__(
        self, task: Task, vocabulary: Vocabulary, config: FinetuneRun, unit: int = 1
    ) -> None:
        """Take a config of setup.resolve_config; the rows of a batch are a multiple of `unit`."""
        self.task, self.vocabulary, self.unit = task, vocabulary, unit
        self.pad_id = vocabulary.special_ids["pad"]
        rows = task.splits["train"]
        self.positions_of_model = config.model.max_position_embeddings
        order = config.data.order_seed, config.batch_size, self.pad_id, self.positions_of_model
        self._stream = ExampleStream(rows, *order)
        self._digest = _sha256(rows)
        self._packed = None
        if task.kind in PACKED:
            self._packed = packing.PackedSteps(self._stream, total_steps(config), unit)
            layout = self._packed.packing
            phases = tuple(
                dataclasses.replace(phase, seq_len=layout.seq_len, batch_size=layout.rows)
                for phase in config.phases
            )
            config = dataclasses.replace(config, phases=phases)
        self.config = config
        # Logits of each development set in the last evaluation, which uses the final weights.
        self.dev_logits: dict[str, np.ndarray] = {}

    @property
    def provenance(self) -> Provenance:
        """Describe the task and its examples, which a resumed run must keep, and the run's start.

        The record also gets the description of the task's layer.
        """
        task, config = self.task, self.config
        fixed = {
            "init": config.init,
            "init_layers": config.init_layers,
            **run_record.list_settings("prune", config.prune),
            "batch_size": config.batch_size,
            "causal_weight": config.causal_weight,
            "step_packing_version (of this bert_jax)": packing.VERSION,
            **run_record.list_settings("data", config.data, _CHANGEABLE_OPTIONS),
            "data (digest of the training examples)": self._digest[:12],
        }
        layer = {
            "name": task.name,
            "kind": task.kind,
            "classes": task.classes,
            "head_width": task.head_width,
            "labels": list(task.labels),
            "mean": task.mean,
            "deviation": task.deviation,
            "digest": self._digest,
        }
        vocab_path = self.vocabulary.path
        return Provenance(
            learns=f"fine-tuning on {task.name}",
            origins=[expand_home("config.data.dir", config.data.dir or "/")],
            vocab_path=vocab_path,
            vocabulary=run_record.make_vocabulary_record(self.vocabulary, name_copy(vocab_path)),
            fixed=fixed,
            details={"task": layer},
        )

    @property
    def digests(self) -> dict[str, str]:
        """Return digests of the development and test sets, which a resumed run may change."""
        splits = {name: rows for name, rows in self.task.splits.items() if name != "train"}
        return {f"data (digest of {name})": _sha256(rows)[:12] for name, rows in splits.items()}

    def batch_shapes(self, index: int, first_step: int) -> list[BatchShape]:
        """List the shapes of batches: one if examples are packed, else one for each length."""
        steps = self._number_steps(index, first_step)
        rows, batch_size = self.task.splits["train"], self.config.batch_size
        if self._packed is not None:
            every_row = np.arange(self._packed.packing.rows)
            batches = self._packed.batches(steps.start, steps.start + 1, every_row)
            return [find_shape(batch) for batch in batches]
        lengths = sorted({self._stream.seq_len(step) for step in steps})
        nothing = np.full(batch_size, -1, np.int64)
        return [find_shape(rows.batch(nothing, seq_len, self.pad_id)) for seq_len in lengths]

    def train_batches(
        self, index: int, first_step: int, rows: np.ndarray
    ) -> Generator[HostBatch, None, None]:
        """Yield the given rows of each batch from a step to the last."""
        source = self._stream if self._packed is None else self._packed
        steps = self._number_steps(index, first_step)
        return source.batches(steps.start, steps.stop, rows)

    def _number_steps(self, index: int, first_step: int) -> range:
        """Return the steps of a phase from one within it on, counted from 0 over all phases."""
        start = phase_start(self.config, index)
        return range(start + first_step, start + self.config.phases[index].steps)

    def locate_step(self, step: int) -> StepRows:
        """Find the examples of a step, counted from 1, in the training split."""
        batch_size = self.config.batch_size
        positions_B = (step - 1) * batch_size + np.arange(batch_size)
        store_B = np.zeros_like(positions_B)
        return StepRows(positions_B, store_B, *self._stream.locate(positions_B))


def describe_phases(feed: TaskFeed) -> list[RunPhase]:
    """Describe the phases of a fine-tuning run, which evaluate the development sets."""
    task, config = feed.task, feed.config
    shards = feed.unit // config.micro_batches
    batch_size = -(-config.batch_size // feed.unit) * shards
    positions = feed.positions_of_model
    batches = {
        split: [*batch_by_length(task.splits[split], batch_size, feed.pad_id, positions)]
        for split in task.dev_splits
    }
    rows, examples = task.splits["train"], config.batch_size
    baseline = {f"majority_dev_{name}": score for name, score in task.baseline.items()}

    def show(screen: Screen, step: int, scores: dict[str, float]) -> None:
        """Print the scores, the deciding one first and next to its baseline."""
        screen.scores_line(step, task.main_record, scores, baseline)

    return [
        RunPhase(
            examples_per_row=examples / phase.batch_size,
            per_step={
                "seq_len": float(phase.seq_len),
                "rows_per_step": float(phase.batch_size * rows.rows_per_example),
                "examples_per_step": float(examples),
                "epochs": phase.steps * examples / rows.examples,
            },
            baseline=baseline,
            heldout_examples=sum(task.splits[name].examples for name in task.dev_splits),
            heldout_batches=[batch.fields for each in batches.values() for batch in each],
            score=functools.partial(_score_dev_sets, feed, batches),
            show=show,
        )
        for phase in config.phases
    ]


def _score_dev_sets(
    feed: TaskFeed, batches: Mapping[str, Sequence[EvaluationBatch]], results: Sequence[Any]
) -> dict[str, float]:
    """Return the loss and the scores of each development set, keyed dev_loss, dev_accuracy, ...

    The logits stay in feed.dev_logits.
    """
    task, scores = feed.task, dict[str, float]()
    unread = iter(results)
    for split, batches_of_split in batches.items():
        total: Mapping[str, float] = {}
        outputs = []
        results_of_split = itertools.islice(unread, len(batches_of_split))
        for batch, result in zip(batches_of_split, results_of_split, strict=True):
            sums = {"terms": result["terms"], "weights": result["weights"]}
            total = metrics.add_step(total, metrics.flatten(sums))
            outputs.append(copy_to_host(batch.index_B, {"logits": result["outputs"]}))
        scores[f"{split}_loss"] = metrics.compute_means(total)[f"{TERM}_loss"]
        logits = collect(outputs, task.splits[split].examples)["logits"]
        feed.dev_logits[split] = logits
        for name, score in task.score(split, logits).items():
            scores[f"dev_{name}"] = score
    return scores
