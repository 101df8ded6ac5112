"""Predict new rows with a fine-tuned model.

Rows are streamed in the order of the input; the output appears complete or not at all. It has the
table's own columns, then prediction, probability and a probability_LABEL per label (with _2 if the
table has such a column). For named entities it has the columns, the tag and its probability. For
SQuAD it is a .json file, and OUT.nbest.json has the best texts with probabilities.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused
from data_pipeline.io.atomic import check_new_file


@dataclasses.dataclass(frozen=True)
class PredictFlags:
    """Declare the flags."""

    checkpoint: str = flag(
        "",
        "fine-tuned model: the workdir of python -m bert_jax.finetune, orbax:DIR@STEP, or hf:DIR "
        "(an export or another classifier)",
        metavar="RUN",
        is_required=True,
    )
    input: str = flag(
        "",
        "rows to predict; table, GLUE, SWAG: .tsv, .csv, .jsonl or .parquet; CODAH: .tsv; NER: "
        "one word per line; SQuAD: its JSON; answers and tags in it are ignored",
        metavar="FILE",
        is_required=True,
    )
    output: str = flag(
        "",
        "new file: .tsv, .csv, .jsonl or .parquet for a table; .conll for NER; .json for SQuAD",
        metavar="FILE",
        is_required=True,
    )
    text_column: str | None = flag(
        None, "column of the text in a table, if named differently than in training"
    )
    second_text_column: str | None = flag(
        None,
        "column of a pair's second text in a table, if named differently than in training; '' for "
        "single texts",
    )
    probabilities: str = flag(
        "all", "probabilities of each class, or of the predicted one", choices=("all", "best")
    )
    null_threshold: float | None = flag(
        None, "SQuAD only: null odds above which no answer is given; as in training if not set"
    )
    max_seq_length: int = flag(
        0, "truncate rows to N tokens, [CLS] and [SEP] included; 0: as in training"
    )
    batch_size: int = flag(64, "rows per batch", minimum=1)
    int8: bool = cli.int8_flag()


COMMAND = Command(
    "bert_jax.predict",
    __doc__,
    PredictFlags,
    "python -m bert_jax.predict --checkpoint=runs/rte --input=new.tsv --output=predicted.tsv",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import numpy as np

from bert_jax.finetuning.objectives import OBJECTIVES
from bert_jax.inference import batches
from bert_jax.interop import load
from bert_jax.interop.pretrained import PlacedModel, Pretrained, place_model
from bert_jax.logging.console import Screen, duration
from bert_jax.model.bert import Heads
from bert_jax.tasks.ner.predict import TagPredictor
from bert_jax.tasks.predict_table import TablePredictor
from bert_jax.tasks.predicting import ComputeLogits, Predictor, PredictRequest
from bert_jax.tasks.squad.predict import AnswerPredictor
from bert_jax.tasks.task import CHOOSE, SPAN, TAG
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.labeled.rows import EncodedRows

_OPENED: dict[str, Callable[..., Predictor]] = {SPAN: AnswerPredictor, TAG: TagPredictor}


def _main(log: LibraryLog, flags: PredictFlags) -> int:
    with cli.preparing():
        source, output = pathlib.Path(flags.input), pathlib.Path(flags.output)
        if not source.is_file():
            raise Refused(f"--input is {source}, which is not a file; give the file of rows")
        check_new_file(output)
        log.hold()
        screen = Screen(is_writer=True)
        with screen.spinning(f"reading {flags.checkpoint}"):
            checkpoint, layer = load.load_fine_tuned(flags.checkpoint)
        _check_columns(flags, layer)
        positions, trained = checkpoint.config.max_position_embeddings, layer.options.max_seq_length
        most = batches.choose_length(flags.max_seq_length, positions, trained)
        options = dataclasses.replace(layer.options, max_seq_length=most)
        layer = dataclasses.replace(layer, options=options)
        request = PredictRequest(
            source,
            output,
            layer,
            checkpoint.vocabulary,
            flags.text_column,
            flags.second_text_column,
            flags.null_threshold,
            flags.probabilities,
        )
        opened = _OPENED.get(layer.kind, TablePredictor)
        with screen.spinning(f"reading {source}") as show:
            rows = opened(request, lambda count: show(f"reading {source}: {count:,} rows"))
    return _predict(flags, checkpoint, layer, rows, screen)


def _check_columns(flags: PredictFlags, layer: TaskLayer) -> None:
    trained_on = f"{flags.checkpoint} was fine-tuned for {layer.name}"
    columns = {"text_column": flags.text_column, "second_text_column": flags.second_text_column}
    given = [name for name, value in columns.items() if value is not None]
    if given and layer.kind in (*_OPENED, CHOOSE):
        raise Refused(
            f"--{given[0]} is for tables of texts or pairs, and {trained_on}, whose files have no "
            "columns to choose; leave it out"
        )
    if flags.null_threshold is not None and layer.kind != SPAN:
        raise Refused(f"--null_threshold is for SQuAD, and {trained_on}; leave it out")


def _predict(
    flags: PredictFlags, checkpoint: Pretrained, layer: TaskLayer, rows: Predictor, screen: Screen
) -> int:
    started = time.monotonic()
    heads = Heads(mlm=False, nsp=False, classes=checkpoint.heads.classes)
    model = place_model(checkpoint, heads, is_int8=flags.int8)
    with screen.waiting(f"predicting {rows.total:,} {rows.unit}: compiling") as show:
        compute_logits = prepare_logits(model, layer.kind, rows, show, flags.batch_size)
        try:
            written = rows.run(compute_logits)
        except Refused as error:
            raise Refused(f"{error}; nothing was written") from error
    secs = time.monotonic() - started
    screen.table(
        f"predicted by {flags.checkpoint}, {layer.name} ({layer.kind})",
        [
            *rows.summary_rows(),
            *(("" if i else "wrote", str(path)) for i, path in enumerate(written)),
            ("time", f"{duration(secs)}, {rows.total / secs:,.1f} {rows.unit} per second"),
        ],
    )
    return 0


def prepare_logits(
    model: PlacedModel, kind: str, rows: Predictor, show: Callable[[str], None], batch_size: int
) -> ComputeLogits:
    """Return a function that computes logits, in batches of rows of about the same length.

    `kind` is a kind of task (task.py); `show` gets the progress line.
    """
    outputs = OBJECTIVES[kind].outputs
    if outputs is None:
        raise TypeError(f"the objective of {kind} has no outputs")
    step = batches.compile_step(
        model.model, lambda bert, batch: {"logits": outputs(bert, dict(batch))}
    )
    done, started = 0, time.monotonic()
    is_small = rows.total < batch_size  # the whole input may be less than a batch

    def compute(encoded: EncodedRows, count: int) -> np.ndarray:
        nonlocal done
        results, examples_done = [], 0
        most = min(batch_size, encoded.examples) if is_small else batch_size
        for index_B, logits in batches.run_rows(step, model, encoded, most):
            results.append((index_B, logits))
            examples_done += len(index_B)
            rows_done = done + count * examples_done // encoded.examples
            secs = time.monotonic() - started
            rate = rows_done / secs if secs else 0.0
            left = f", {duration((rows.total - rows_done) / rate)} left" if rate else ""
            show(f"{rows_done:,} of {rows.total:,} {rows.unit}, {rate:,.0f} per second{left}")
        done += count
        return batches.collect(results, encoded.examples)["logits"]

    return compute


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was written", argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
