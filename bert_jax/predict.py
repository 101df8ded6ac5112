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

import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from absl import flags

from bert_jax.runtime import absl_cli as cli

_CHECKPOINT = flags.DEFINE_string("checkpoint", "", "a fine-tuned run's workdir, or hf:DIR")
_INPUT = flags.DEFINE_string("input", "", "the rows to predict")
_OUTPUT = flags.DEFINE_string("output", "", "a new file, in the format of its ending")
_TEXT_COLUMN = flags.DEFINE_string(
    "text_column", None, "column of the text in a table, if it has another name than in training"
)
_SECOND_TEXT_COLUMN = flags.DEFINE_string(
    "second_text_column",
    None,
    "column of a pair's second text in a table, if it has another name than in training; '' for "
    "single texts",
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

if __name__ == "__main__":
    cli.check_command_line(USAGE)

import numpy as np

from bert_jax.finetuning.objectives import OBJECTIVES
from bert_jax.inference import batches
from bert_jax.interop import load
from bert_jax.interop.pretrained import PlacedModel, Pretrained, place_model
from bert_jax.logging.console import Screen, duration
from bert_jax.model.bert import Heads
from bert_jax.tasks.ner.predict import TagPredictor
from bert_jax.tasks.predict_table import TablePredictor
from bert_jax.tasks.predicting import Predictor, PredictRequest
from bert_jax.tasks.squad.predict import AnswerPredictor
from bert_jax.tasks.task import SPAN, TAG
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_new_file
from data_pipeline.io.refused import Refused
from data_pipeline.labelled.rows import EncodedRows

_OPENED: dict[str, Callable[..., Predictor]] = {SPAN: AnswerPredictor, TAG: TagPredictor}


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        cli.refuse_arguments(arguments, USAGE)
        for flag in (_CHECKPOINT, _INPUT, _OUTPUT):
            if not flag.value:
                raise Refused(f"--{flag.name} is missing; {USAGE}")
        source, output = pathlib.Path(_INPUT.value), pathlib.Path(_OUTPUT.value)
        if not source.is_file():
            raise Refused(f"--input is {source}, which is not a file; give the file of rows")
        check_new_file(output, "--output")
        if _BATCH_SIZE.value < 1:
            raise Refused(f"--batch_size is {_BATCH_SIZE.value}; it must be 1 or more")
        log.hold()
        screen = Screen(is_writer=True)
        with screen.spinning(f"reading {_CHECKPOINT.value}"):
            checkpoint, layer = load.load_fine_tuned(_CHECKPOINT.value)
        _check_columns(layer)
        request = PredictRequest(
            source,
            layer,
            checkpoint.vocabulary,
            _choose_max_seq_length(checkpoint, layer),
            _TEXT_COLUMN.value,
            _SECOND_TEXT_COLUMN.value,
            _NULL_THRESHOLD.value,
            _PROBABILITIES.value,
        )
        opened = _OPENED.get(layer.kind, TablePredictor)
        with screen.spinning(f"reading {source}") as show:
            rows = opened(request, output, lambda count: show(f"reading {source}: {count:,} rows"))
    return _predict(checkpoint, layer, rows, output, screen)


def _choose_max_seq_length(checkpoint: Pretrained, layer: TaskLayer) -> int:
    positions = checkpoint.config.max_position_embeddings
    longest = _MAX_SEQ_LENGTH.value or min(layer.options.max_seq_length, positions)
    if not 3 <= longest <= positions:
        raise Refused(
            f"--max_seq_length is {longest}; it must be from 3 to {positions}, the positions that "
            "the model has, or 0 for the length of its training"
        )
    return longest


def _check_columns(layer: TaskLayer) -> None:
    trained_on = f"{_CHECKPOINT.value} was fine-tuned on {layer.name}"
    given = [flag for flag in (_TEXT_COLUMN, _SECOND_TEXT_COLUMN) if flag.value is not None]
    if given and layer.kind in _OPENED:
        raise Refused(
            f"--{given[0].name} is of tables, and {trained_on}, whose files have no names of "
            "columns; leave it out"
        )
    if _NULL_THRESHOLD.value is not None and layer.kind != SPAN:
        raise Refused(f"--null_threshold is of SQuAD, and {trained_on}; leave it out")


def _predict(
    checkpoint: Pretrained,
    layer: TaskLayer,
    rows: Predictor,
    output: pathlib.Path,
    screen: Screen,
) -> int:
    started = time.monotonic()
    heads = Heads(mlm=False, nsp=False, classes=checkpoint.heads.classes)
    model = place_model(checkpoint, heads)
    with screen.waiting(f"predicting {rows.total:,} {rows.unit}: compiling") as show:
        logits = Logits(model, layer.kind, rows, show, _BATCH_SIZE.value)
        try:
            written = rows.run(output, logits)
        except Refused as error:
            raise Refused(f"{error}; nothing was written") from error
    secs = time.monotonic() - started
    labels = ["wrote"] + [""] * len(written)
    screen.table(
        f"predicted by {_CHECKPOINT.value}, {layer.name} ({layer.kind})",
        [
            *rows.summary_rows(),
            *((label, str(path)) for label, path in zip(labels, written, strict=False)),
            ("time", f"{duration(secs)}, {rows.total / secs:,.1f} {rows.unit} a second"),
        ],
    )
    return 0


class Logits:
    """Compute the logits of rows in batches of about one length, and show the progress."""

    def __init__(
        self,
        model: PlacedModel,
        kind: str,
        rows: Predictor,
        show: Callable[[str], None],
        batch_size: int,
    ) -> None:
        """`kind` is the task's, one of finetuning.objectives; `show` gets the progress line."""
        outputs = OBJECTIVES[kind].outputs
        if outputs is None:
            raise TypeError(f"the objective of {kind} has no outputs")
        self._model, self._rows, self._show, self._batch_size = model, rows, show, batch_size
        self._step = batches.compile_step(
            model.model, lambda bert, batch: {"logits": outputs(bert, dict(batch))}
        )
        self._done, self._started = 0, time.monotonic()

    def __call__(self, rows: EncodedRows, count: int) -> np.ndarray:
        """Return the logits of the rows in order; `count` is their number of input units."""
        is_small = self._rows.total < self._batch_size  # the whole input may be less than a batch
        batch_size = min(self._batch_size, rows.examples) if is_small else self._batch_size
        results = batches.run_rows(self._step, self._model, rows, batch_size)
        logits = batches.collect(self._count(results, rows.examples, count), rows.examples)
        self._done += count
        return logits["logits"]

    def _count(self, results: batches.Results, examples: int, count: int) -> batches.Results:
        examples_done = 0
        for index_B, outputs in results:
            yield index_B, outputs
            examples_done += len(index_B)
            total, unit = self._rows.total, self._rows.unit
            done = self._done + count * examples_done // examples
            secs = time.monotonic() - self._started
            rate = done / secs if secs else 0.0
            left = f", {duration((total - done) / rate)} left" if rate else ""
            self._show(f"{done:,} of {total:,} {unit}, {rate:,.0f} a second{left}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "nothing was written", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
