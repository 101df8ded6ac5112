"""Write the examples of a store as TFRecords with Google BERT's features."""

import concurrent.futures
import dataclasses
import json
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rich.console

from data_pipeline.cli.flags import MAX_WORKERS, Command, flag, section
from data_pipeline.cli.main import run_main
from data_pipeline.cli.terminal import make_console, print_paragraph
from data_pipeline.cli.worker_pool import CONTEXT, count_cores, open_workers, run_task
from data_pipeline.io import Refused
from data_pipeline.io.atomic import Destination, check_new_folder, new_folder
from data_pipeline.report.progress import progress_bar
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.hashing import HASH_VERSION
from data_pipeline.spec.options import OPTIONS_OF_A_RUN, PretrainOptions
from data_pipeline.spec.schema import TFRECORD_FIELDS
from data_pipeline.store import EXAMPLES, HELDOUT, TRAIN, check_is_local, open_store
from data_pipeline.store.reader import hash_file
from data_pipeline.store.tfrecord import COMPRESSIONS, count_values, open_writer, serialize_examples

# The settings that shape examples.
_SAMPLER_FLAGS = [
    field.name
    for field in dataclasses.fields(PretrainOptions)
    if field.name not in (*OPTIONS_OF_A_RUN, "packed_examples")
]
EXAMPLE = (
    "python -m data_pipeline.export_tfrecord --store=stores/corpus --output=DIR --seq_len=128 "
    "--max_predictions_per_seq=20"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Declare the flags; `options` holds the options that Google's records can express."""

    store: str = flag(
        "", "folder that python -m data_pipeline.build wrote", metavar="STORE", is_required=True
    )
    output: str = flag("", "the folder to make", metavar="DIR", is_required=True)
    seq_len: int = flag(128, "tokens in an example")
    max_predictions_per_seq: int = flag(
        20, "most masked tokens in an example; take 77 for 512 tokens"
    )
    split: str = flag(TRAIN, "the examples to write", choices=(TRAIN, HELDOUT))
    epochs: int = flag(
        0,
        "passes over the text, each with its own pairs, masks and order; 0: the value of "
        "--dupe_factor, or 1 for a store of ready-made examples",
        minimum=0,
        maximum=10_000,
    )
    # The maximum: the numbers of files have five digits in their names.
    shards: int = flag(
        10, "number of files; examples go to them in turn", minimum=1, maximum=99_999
    )
    compression: str = flag("none", "compression of the files", choices=tuple(COMPRESSIONS))
    workers: int = flag(0, "processes; 0: one per core", minimum=0, maximum=MAX_WORKERS)
    options: PretrainOptions = section("examples", _SAMPLER_FLAGS)

    def __post_init__(self) -> None:
        self.options.check_flags()
        check_is_local("--output", self.output)

    def file_name(self, number: int) -> str:
        """Return the name of a file."""
        ending = ".gz" if self.compression == "gzip" else ""
        return f"{self.split}-{number:05}-of-{self.shards:05}.tfrecord{ending}"


COMMAND = Command("data_pipeline.export_tfrecord", __doc__, ExportFlags, EXAMPLE)


MANIFEST = "export.json"
_GROUP_EXAMPLES = 1024
_POLL_SECS = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Export the examples that the flags describe; return the exit code."""
    console = make_console(highlight=False)
    return run_main(COMMAND, lambda _, flags: export(flags, console), argv, hides_libraries=True)


def export(flags: ExportFlags, console: rich.console.Console) -> None:
    """Write the files that the flags describe, or raise and leave --output as it was.

    Position p of the stream of examples goes to file p modulo --shards: every file gets its share
    of every epoch, and reading the files round-robin restores the stream. An example without a
    second segment is skipped if others have one, as the format requires a label for every example.

    Raises:
      Refused, OSError: the store, its settings or the output are wrong.
    """
    destination = Destination(pathlib.Path(flags.output), MANIFEST)
    check_new_folder(destination)
    job = _Export(flags)
    examples = job.examples
    if flags.shards > examples:
        raise Refused(f"--shards is {flags.shards}, for {examples} examples; give no more files")
    with new_folder(destination) as folder:
        label = f"writing {examples:,} examples into {flags.shards:,} files"
        with progress_bar(console, label, examples) as advance:
            left_out = _write_all(job, folder, advance)
        shutil.copyfile(job.store.vocab_path, folder / job.store.vocab_path.name)
        facts = job.describe(folder, left_out)
        (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if left_out:
        print_paragraph(
            console,
            f"! {left_out:,} of {examples:,} examples are skipped: they have one sentence, and the "
            "format cannot say that their next-sentence label means nothing.",
            "yellow",
        )
    if not facts["has_next_sentences"]:
        print_paragraph(
            console,
            f"! with --segments={flags.options.segments} every next_sentence_labels is 0, and the "
            "format cannot say that it means nothing: train on these records without that loss.",
            "yellow",
        )
    console.print(f"TFRecords in {flags.output}; {MANIFEST} says how they were made", markup=False)


class _Export:
    """Write the files of an export; the flags, the store and its number decide a file's content."""

    def __init__(
        self, flags: ExportFlags, advance: Callable[[int], None] = lambda examples: None
    ) -> None:
        """Open the store; `advance` is called with the number of examples after each batch."""
        self.store = store = open_store(flags.store)
        split = getattr(store, flags.split)
        slots = flags.max_predictions_per_seq
        self.source = open_examples(store, split, flags.options, flags.seq_len, slots)
        different = 1 if store.kind == EXAMPLES else flags.options.dupe_factor
        self.flags = dataclasses.replace(flags, epochs=flags.epochs or different)
        self.examples = sum(map(self.source.rows_in_epoch, range(self.flags.epochs)))
        self.advance = advance

    def write(self, folder: pathlib.Path, number: int) -> int:
        """Write file `number`; return how many of its examples are skipped."""
        flags, left_out = self.flags, 0
        with open_writer(folder / flags.file_name(number), flags.compression) as writer:
            stride = flags.shards * _GROUP_EXAMPLES
            for start in range(number, self.examples, stride):
                stop = min(start + stride, self.examples)
                batch = self.source.rows(np.arange(start, stop, flags.shards, dtype=np.int64))
                self.advance(len(batch["input_ids"]))
                if flags.options.has_next_sentences:
                    has_label_B = batch["next_sentence_weights"] > 0
                    left_out += int(np.count_nonzero(~has_label_B))
                    batch = {name: batch[name][has_label_B] for name in TFRECORD_FIELDS}
                for record in serialize_examples(batch):
                    writer.write(record)
        return left_out

    def describe(self, folder: pathlib.Path, left_out: int) -> dict[str, Any]:
        """Return the content of export.json, with `left_out` examples skipped."""
        flags, lengths = self.flags, count_values(self.source.shape)
        return {
            "format": "TFRecords of tf.train.Example with the features of Google BERT's "
            "create_pretraining_data.py",
            "made_by": "python -m data_pipeline.export_tfrecord",
            "store_digest": self.store.digest,
            "vocabulary": self.store.manifest["vocabulary"],
            "split": flags.split,
            "seq_len": flags.seq_len,
            "max_predictions_per_seq": flags.max_predictions_per_seq,
            "epochs": flags.epochs,
            "examples": self.examples - left_out,
            "left_out": {"examples_without_next_sentence": left_out},
            "order": "example p of the stream is in file p modulo the number of files",
            "has_next_sentences": flags.options.has_next_sentences,
            "options": {
                name: value
                for name, value in dataclasses.asdict(flags.options).items()
                if name not in ("store", "data_cache")
            },
            "hash_version": HASH_VERSION,
            "features": {
                name: f"{'float' if field.dtype is np.float32 else 'int64'}[{lengths[name]}]"
                for name, field in TFRECORD_FIELDS.items()
            },
            "compression": flags.compression,
            "files": {
                name: {"bytes": (folder / name).stat().st_size, "sha256": hash_file(folder / name)}
                for name in map(flags.file_name, range(flags.shards))
            },
        }


def _write_all(job: _Export, folder: pathlib.Path, advance: Callable[[int], None]) -> int:
    """Write every file; return how many examples were skipped."""
    numbers = range(job.flags.shards)
    workers = min(job.flags.workers or count_cores(), len(numbers))
    if workers == 1:
        job.advance = advance
        return sum(job.write(folder, number) for number in numbers)
    written, stop = CONTEXT.Value("q", 0), CONTEXT.Event()
    reported = skipped = 0
    with open_workers(workers, _open_worker, (job.flags, written, stop)) as pool:
        waiting = {pool.submit(run_task, _Export.write, folder, number) for number in numbers}
        try:
            while waiting:
                done, waiting = concurrent.futures.wait(
                    waiting, _POLL_SECS, concurrent.futures.FIRST_COMPLETED
                )
                skipped += sum(future.result() for future in done)
                advance(written.value - reported)
                reported = written.value
        finally:
            stop.set()
    return skipped


def _open_worker(flags: ExportFlags, written: Any, stop: Any) -> _Export:
    """Open the store in a worker process, which counts examples in a value that all share."""

    def advance(count: int) -> None:
        if stop.is_set():  # nobody needs this file after Ctrl-C or a failed worker
            raise InterruptedError
        with written.get_lock():
            written.value += count

    return _Export(flags, advance)


if __name__ == "__main__":
    sys.exit(main())
