"""Predict new rows: python -m bert_jax.predict --checkpoint=RUN --input=FILE --output=FILE

    --checkpoint=RUN   a fine-tuned model: the workdir of python -m bert_jax.finetune, or
                       orbax:DIR@STEP; hf:DIR, its export, or somebody's classifier
    --input=FILE       of a table, GLUE, SWAG: .tsv, .csv, .jsonl or .parquet; CODAH: .tsv; NER: a
                       word a line; SQuAD: its JSON. Answers and tags may be there, and are unread
    --output=FILE      a new file. A table's own columns, then prediction, probability and
                       probability_LABEL of each (with _2 behind where the table has such a column),
                       by the ending .tsv, .csv, .jsonl or .parquet; NER: .conll, the columns, the
                       tag, its probability; SQuAD: .json, and OUT.nbest.json with probabilities
    --text_column=NAME --second_text_column=NAME   where they differ from those of the training

Rows of any number stream through; the output appears whole or not at all, in the input's order.
"""

import functools
import pathlib
import time
from collections.abc import Callable

import jax
import numpy as np
from absl import flags

from bert_jax import command_line, fine_tuned, inference, pretrained
from bert_jax import mesh as mesh_lib
from bert_jax.config import MeshConfig
from bert_jax.exit_codes import Refused
from bert_jax.fine_tuned import FineTuned
from bert_jax.models import bert
from bert_jax.models.bert import Heads, Model, Params
from bert_jax.screen import Screen, duration
from bert_jax.tasks.objectives import OBJECTIVES
from bert_jax.tasks.predict_answers import PredictAnswers
from bert_jax.tasks.predict_table import PredictTable
from bert_jax.tasks.predict_words import PredictWords
from bert_jax.tasks.predicting import Asked, Predicting
from bert_jax.tasks.task import SPAN, TAG
from data_pipeline.finetune import EncodedRows
from data_pipeline.library_log import LibraryLog
from data_pipeline.whole_file import check_new

_CHECKPOINT = flags.DEFINE_string("checkpoint", "", "a fine-tuned run's workdir, or hf:DIR")
_INPUT = flags.DEFINE_string("input", "", "the rows to predict")
_OUTPUT = flags.DEFINE_string("output", "", "a new file, in the format of its ending")
_TEXT_COLUMN = flags.DEFINE_string(
    "text_column", None, "of a table, where it is not called as in training"
)
_SECOND_TEXT_COLUMN = flags.DEFINE_string(
    "second_text_column", None, "likewise of pairs; '' for single texts"
)
_PROBABILITIES = flags.DEFINE_enum(
    "probabilities", "all", ["all", "best"], "of each class, or of the predicted one alone"
)
_NULL_THRESHOLD = flags.DEFINE_float(
    "null_threshold", None, "of SQuAD: null odds above which no answer is given; as the run"
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length", 0, "tokens that a row is cut to, [CLS] and [SEP] too; 0: as in training"
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "rows in a batch")

USAGE = "python -m bert_jax.predict --checkpoint=RUN --input=FILE --output=FILE"
_Open = Callable[[Asked, pathlib.Path, Callable[[int], None]], Predicting]
_OPENED: dict[str, _Open] = {
    SPAN: PredictAnswers,
    TAG: PredictWords,
}  # others: PredictTable


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    command_line.refuse_arguments(arguments, USAGE)
    for flag in (_CHECKPOINT, _INPUT, _OUTPUT):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing; {USAGE}")
    source, output = pathlib.Path(_INPUT.value), pathlib.Path(_OUTPUT.value)
    if not source.is_file():
        raise ValueError(f"--input is {source}, which is not a file; give the file of rows")
    check_new(output, "--output")
    if _BATCH_SIZE.value < 1:
        raise ValueError(f"--batch_size is {_BATCH_SIZE.value}; it must be 1 or more")
    log.hold()
    screen = Screen(is_writer=True)
    with screen.spinning(f"reading {_CHECKPOINT.value}"):
        model = fine_tuned.load(_CHECKPOINT.value)
    asked = Asked(
        source,
        model.layer,
        model.checkpoint.vocabulary,
        _max_seq_length(model),
        _TEXT_COLUMN.value,
        _SECOND_TEXT_COLUMN.value,
        _NULL_THRESHOLD.value,
        _PROBABILITIES.value,
    )
    _check_columns(model)
    opened: _Open = _OPENED.get(model.layer.kind, PredictTable)
    with screen.spinning(f"reading {source}") as show:
        rows = opened(asked, output, lambda count: show(f"reading {source}: {count:,} rows"))
    return functools.partial(_predict, model, rows, output, screen)


def _max_seq_length(model: FineTuned) -> int:
    positions = model.checkpoint.config.max_position_embeddings
    longest = _MAX_SEQ_LENGTH.value or min(model.layer.options.max_seq_length, positions)
    if not 3 <= longest <= positions:
        raise ValueError(
            f"--max_seq_length is {longest}; it must be from 3 to {positions}, the positions that "
            "the model has, or 0 for the length of its training"
        )
    return longest


def _check_columns(model: FineTuned) -> None:
    given = [flag for flag in (_TEXT_COLUMN, _SECOND_TEXT_COLUMN) if flag.value is not None]
    if given and model.layer.kind in _OPENED:
        raise ValueError(
            f"--{given[0].name} is of tables, and {_CHECKPOINT.value} was fine-tuned on "
            f"{model.layer.name}, whose files have no names of columns; leave it out"
        )
    if _NULL_THRESHOLD.value is not None and model.layer.kind != SPAN:
        raise ValueError(
            f"--null_threshold is of SQuAD, and {_CHECKPOINT.value} was fine-tuned on "
            f"{model.layer.name}; leave it out"
        )


def _predict(model: FineTuned, rows: Predicting, output: pathlib.Path, screen: Screen) -> int:
    started = time.monotonic()
    on = mesh_lib.make(MeshConfig(preset="dp"))
    jax.set_mesh(on)
    network, params = placed(model, on)
    with screen.waiting(f"predicting {rows.total:,} {rows.unit}: compiling") as show:
        logits = Logits(model, network, params, on, rows, show, _BATCH_SIZE.value)
        try:
            written = rows.run(output, logits)
        except ValueError as error:
            raise Refused(f"{error}; nothing was written") from error
    secs = time.monotonic() - started
    labels = ["wrote"] + [""] * len(written)
    layer = model.layer
    screen.table(
        f"predicted by {_CHECKPOINT.value}, {layer.name} ({layer.kind})",
        [
            *rows.account(),
            *((label, str(path)) for label, path in zip(labels, written, strict=False)),
            ("time", f"{duration(secs)}, {rows.total / secs:,.1f} {rows.unit} a second"),
        ],
    )
    return 0


def placed(model: FineTuned, on: jax.sharding.Mesh) -> tuple[Model, Params]:
    """Return the network with its parameters on a mesh."""
    heads = Heads(mlm=False, nsp=False, classes=model.checkpoint.heads.classes)
    network = bert.build(model.checkpoint.config, jax.default_backend(), heads=heads)
    # What is drawn is a pooler that the layer does not read.
    params, _ = pretrained.placed(model.checkpoint, network, on, seed=0)
    return network, params


class Logits:
    """Gives the logits of rows, batches of about one length at a time, and shows how far it is."""

    def __init__(
        self,
        model: FineTuned,
        network: Model,
        params: Params,
        on: jax.sharding.Mesh,
        rows: Predicting,
        show: Callable[[str], None],
        batch_size: int,
    ) -> None:
        """show is told the words of the line of progress."""
        self._batch_size = batch_size
        self._params, self._on, self._rows, self._show = params, on, rows, show
        outputs = OBJECTIVES[model.layer.kind].outputs
        if outputs is None:
            raise TypeError(f"the objective of {model.layer.kind} has no outputs")
        self._step = inference.step(
            network, lambda bert, batch: {"logits": outputs(bert, dict(batch))}
        )
        self._pad_id = model.checkpoint.vocabulary.special_ids["pad"]
        self._positions = model.checkpoint.config.max_position_embeddings
        self._done, self._started = 0, time.monotonic()

    def __call__(self, rows: EncodedRows, count: int) -> np.ndarray:
        """Return the logits of the rows in their order; they are `count` of what is counted."""
        is_small = self._rows.total < self._batch_size  # all of it may be less than a batch
        batch_size = min(self._batch_size, rows.examples) if is_small else self._batch_size
        place = self._on, rows, batch_size, self._pad_id, self._positions
        batches = inference.each_batch(self._step, self._params, *place)
        logits = inference.collected(self._shown(batches, rows.examples, count), rows.examples)
        self._done += count
        return logits["logits"]

    def _shown(self, batches: inference.Results, examples: int, count: int) -> inference.Results:
        examples_done = 0
        for index_B, outputs in batches:
            yield index_B, outputs
            examples_done += len(index_B)
            done = self._done + count * examples_done // examples
            self._show(_progress(done, self._rows, time.monotonic() - self._started))


def _progress(done: int, rows: Predicting, secs: float) -> str:
    rate = done / secs if secs else 0.0
    left = f", {duration((rows.total - done) / rate)} left" if rate else ""
    return f"{done:,} of {rows.total:,} {rows.unit}, {rate:,.0f} a second{left}"


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was written")


if __name__ == "__main__":
    main()
