"""Writes a store's examples as TFRecords: python -m data_pipeline.export_tfrecord --help."""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import rich.console

from data_pipeline import terminal_console
from data_pipeline.build_report import progress_bar
from data_pipeline.example_source import ExampleSource
from data_pipeline.examples import open_examples
from data_pipeline.exit_code import exit_code_of, on_stderr
from data_pipeline.export_flags import ExportFlags, parse_flags
from data_pipeline.hashing import HASH_VERSION
from data_pipeline.library_log import LibraryLog
from data_pipeline.store import EXAMPLES, Store, open_store
from data_pipeline.store_writing import sha256
from data_pipeline.tfrecord import FEATURES, feature_lengths, open_writer, serialized
from data_pipeline.whole_folder import check_output, whole_folder
from data_pipeline.wrapping import print_paragraph

MANIFEST = "export.json"
_GROUP_EXAMPLES = 1024
_LOOK_SECS = 0.2


def main(argv: list[str] | None = None, say: Callable[[str], None] = on_stderr) -> int:
    """Export; 0, or 2 after one line that says what is wrong."""
    console = terminal_console.console(highlight=False)
    arguments = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: export(parse_flags(arguments), console), say)


def export(flags: ExportFlags, console: rich.console.Console) -> None:
    """Write the files that the flags describe, or raise and leave --output as it was.

    Position p of the stream of examples goes to file p modulo --shards, so that every file has its
    share of every epoch, and the files read in turn are the stream. An example without a next
    sentence, as one of a single sentence has none to be swapped with, is left out where the others
    have one: the format gives every example a label.

    Raises:
      ValueError, OSError: what is wrong with the store, its settings or the output.
    """
    check_output(flags.output, MANIFEST)
    store = open_store(flags.store)
    source = _open(store, flags)
    different = 1 if store.kind == EXAMPLES else flags.options.dupe_factor
    flags = dataclasses.replace(flags, epochs=flags.epochs or different)
    examples = sum(source.rows_in_epoch(epoch) for epoch in range(flags.epochs))
    if flags.shards > examples:
        raise ValueError(f"--shards is {flags.shards}; the {examples} examples fill as many files")
    with whole_folder(flags.output, last=MANIFEST) as folder:
        label = f"writing {examples:,} examples into {flags.shards:,} files"
        with progress_bar(console, label, examples) as advance:
            left_out = _write_all(flags, folder, examples, source, advance)
        shutil.copyfile(store.vocab_path, folder / store.vocab_path.name)
        facts = _facts(flags, store, source, folder, examples, left_out)
        (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if left_out:
        print_paragraph(
            console,
            f"! {left_out:,} of {examples:,} examples are left out: they are of one "
            "sentence, and the format cannot say that their next-sentence label means nothing.",
            "yellow",
        )
    if not facts["has_next_sentences"]:
        print_paragraph(
            console,
            f"! with --segments={flags.options.segments} there are no next sentences: "
            "every next_sentence_labels is 0 and the format cannot say that it means nothing; "
            "train on these records without that loss.",
            "yellow",
        )
    console.print(f"TFRecords in {flags.output}; {MANIFEST} says how they were made", markup=False)


def file_name(flags: ExportFlags, number: int) -> str:
    """The name of one of the files."""
    ending = ".gz" if flags.compression == "gzip" else ""
    return f"{flags.split}-{number:05}-of-{flags.shards:05}.tfrecord{ending}"


def _open(store: Store, flags: ExportFlags) -> ExampleSource:
    return open_examples(
        store,
        getattr(store, flags.split),
        flags.options,
        flags.seq_len,
        flags.max_predictions_per_seq,
    )


def _write_all(
    flags: ExportFlags,
    folder: pathlib.Path,
    examples: int,
    source: ExampleSource,
    advance: Callable[[int], None],
) -> int:
    """Write every file; returns how many examples were left out."""
    workers = min(flags.workers, flags.shards)
    if workers == 1:
        return sum(
            _write_file(flags, folder, number, examples, source, advance)
            for number in range(flags.shards)
        )
    context = multiprocessing.get_context("spawn")  # TensorFlow has threads, a fork would hang
    written, stop = context.Value("q", 0), context.Event()
    with concurrent.futures.ProcessPoolExecutor(
        workers, context, _start_worker, (flags, written, stop)
    ) as pool:
        waiting = {
            pool.submit(_write_in_worker, flags, folder, number, examples)
            for number in range(flags.shards)
        }
        shown = left_out = 0
        try:
            while waiting:
                done, waiting = concurrent.futures.wait(
                    waiting, _LOOK_SECS, concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    left_out += future.result()
                advance(written.value - shown)
                shown = written.value
        except BrokenProcessPool as error:
            raise ValueError(
                f"one of the {workers} processes was killed, most likely for want of memory; use "
                "fewer with --workers=N"
            ) from error
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return left_out


# What a worker process keeps between files.
_worker: dict[str, Any] = {}


def _start_worker(flags: ExportFlags, written: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _worker["source"] = _open(open_store(flags.store), flags)
    _worker["written"], _worker["stop"] = written, stop


def _write_in_worker(flags: ExportFlags, folder: pathlib.Path, number: int, examples: int) -> int:
    written = _worker["written"]

    def advance(count: int) -> None:
        if _worker["stop"].is_set():  # another failed, or Ctrl-C: nobody waits for this file
            raise InterruptedError
        with written.get_lock():
            written.value += count

    return _write_file(flags, folder, number, examples, _worker["source"], advance)


def _write_file(
    flags: ExportFlags,
    folder: pathlib.Path,
    number: int,
    examples: int,
    source: ExampleSource,
    advance: Callable[[int], None],
) -> int:
    """Write file `number`, a function of the flags and the store; returns how many are left out."""
    left_out = 0
    with open_writer(folder / file_name(flags, number), flags.compression) as writer:
        stride = flags.shards * _GROUP_EXAMPLES
        for start in range(number, examples, stride):
            stop = min(start + stride, examples)
            batch = source.rows(np.arange(start, stop, flags.shards, dtype=np.int64))
            advance(len(batch["input_ids"]))
            if flags.options.has_next_sentences:
                has_label_B = batch["next_sentence_weights"] > 0
                left_out += int(np.count_nonzero(~has_label_B))
                batch = {name: batch[name][has_label_B] for name in FEATURES}
            for record in serialized(batch):
                writer.write(record)
    return left_out


def _facts(
    flags: ExportFlags,
    store: Store,
    source: ExampleSource,
    folder: pathlib.Path,
    examples: int,
    left_out: int,
) -> dict[str, Any]:
    """What export.json says."""
    names = [file_name(flags, number) for number in range(flags.shards)]
    lengths = feature_lengths(source.shape)
    return {
        "format": "TFRecords of tf.train.Example with the features of Google BERT's "
        "create_pretraining_data.py",
        "made_by": "python -m data_pipeline.export_tfrecord",
        "store_digest": store.digest,
        "vocabulary": store.manifest["vocabulary"],
        "split": flags.split,
        "seq_len": flags.seq_len,
        "max_predictions_per_seq": flags.max_predictions_per_seq,
        "epochs": flags.epochs,
        "examples": examples - left_out,
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
            for name, field in FEATURES.items()
        },
        "compression": flags.compression,
        "files": {name: _file_facts(folder / name) for name in names},
    }


def _file_facts(path: pathlib.Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


if __name__ == "__main__":
    with LibraryLog() as log:
        log.hold()  # tensorflow greets
        exit_code = main(say=log.say)
    sys.exit(exit_code)
