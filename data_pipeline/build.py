"""Builds a store from text files: python -m data_pipeline.build --help."""

import collections
import contextlib
import dataclasses
import itertools
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import rich.console

from data_pipeline import terminal_console, tfds_documents
from data_pipeline.beam_encoding import encode_with_beam
from data_pipeline.build_flags import BEAM, BuildFlags, parse_flags
from data_pipeline.build_manifest import BuildFound, build_manifest
from data_pipeline.build_report import BuildRun, count_of_files, print_report, progress_bar
from data_pipeline.cleaning import COUNTED, FILES_WITHOUT_TEXT, CleaningOptions
from data_pipeline.encode_corpus import encode_corpus
from data_pipeline.encoded_chunk import EncodedChunk, read_chunks
from data_pipeline.example_arrays import FOLDER as EXAMPLES_FOLDER
from data_pipeline.exit_code import exit_code_of, on_stderr
from data_pipeline.holdout import choose_heldout, impossible, write_splits
from data_pipeline.library_log import LibraryLog
from data_pipeline.live_line import LINE
from data_pipeline.selection import Selection, select
from data_pipeline.sources import Source, find_sources
from data_pipeline.spool import Spool
from data_pipeline.store import HELDOUT, MANIFEST, TRAIN
from data_pipeline.store_upload import (
    check_destination,
    new_scratch,
    unmark_destination,
    upload_bytes,
    upload_store,
)
from data_pipeline.store_writing import SplitWriter, write_manifest
from data_pipeline.text import read_documents
from data_pipeline.tokenizer_json import TOKENIZER_JSON, write_tokenizer_json
from data_pipeline.vocab import FILE_NAMES, Vocabulary, load_vocabulary, token_dtype
from data_pipeline.vocab_training import TEXT_CHARS, TRAINED, train_vocabulary, training_text
from data_pipeline.whole_folder import check_output, whole_folder

# What a store has beside its manifest, whoever made it.
_REPLACED = (TRAIN, HELDOUT, EXAMPLES_FOLDER, *FILE_NAMES.values(), TOKENIZER_JSON)


def main(argv: list[str] | None = None, say: Callable[[str], None] = on_stderr) -> int:
    """Run the build; 0, or 2 after one line to the screen that says what is wrong."""
    console = terminal_console.console(highlight=False)
    flags = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: build(parse_flags(flags), console), say)


def build(flags: BuildFlags, console: rich.console.Console) -> None:
    """Make the store that the flags describe, or raise and leave --output as it was.

    Raises:
      ValueError, OSError: what is wrong with the flags, the input, the vocabulary or the output.
    """
    started_secs = time.perf_counter()
    if flags.address:
        _build_in_bucket(flags, console, started_secs)
        return
    check_output(flags.output, MANIFEST, flags.overwrite)
    manifest = _build_folder(flags, _checked_sources(flags), console)
    seconds = time.perf_counter() - started_secs
    print_report(console, BuildRun(flags.output, manifest, seconds, _encoded_by(flags)))


def _build_in_bucket(flags: BuildFlags, console: rich.console.Console, started_secs: float) -> None:
    """Build in a folder of --scratch, copy the store to its address and remove the folder.

    A store that was built and cannot be copied stays, and the error names it.
    """
    check_destination(flags.address, flags.overwrite)
    is_built = False
    try:
        sources = _checked_sources(flags)
        scratch = new_scratch(flags.scratch, sum(source.stored_bytes for source in sources))
    except BaseException:
        unmark_destination(flags.address)
        raise
    folder = scratch / pathlib.PurePosixPath(flags.address).name
    try:
        manifest = _build_folder(dataclasses.replace(flags, output=folder), sources, console)
        is_built = True
        with progress_bar(console, f"copying to {flags.address}", upload_bytes(folder)) as advance:
            upload_store(folder, flags.address, manifest, advance)
        seconds = time.perf_counter() - started_secs
        run = BuildRun(folder, manifest, seconds, _encoded_by(flags), flags.address)
        print_report(console, run)
    except (OSError, ValueError) as error:
        if not is_built:
            unmark_destination(flags.address)
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        raise ValueError(
            f"{error}; the store is whole in {folder}, and can be copied by: gcloud storage cp "
            f"--recursive '{folder}/*' {flags.address}/"
        ) from error
    except BaseException:
        unmark_destination(flags.address)
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)


def _checked_sources(flags: BuildFlags) -> list[Source]:
    """Find the input and refuse before the long work what can be refused."""
    with LINE.doing("listing the files"):
        sources = find_sources(flags.input, flags.text)
    if flags.vocab:
        load_vocabulary(flags.vocab, flags.lowercase)
    _check_documents(flags, sources)
    return sources


def _build_folder(
    flags: BuildFlags, sources: list[Source], console: rich.console.Console
) -> dict[str, Any]:
    """Make the store in the folder --output; returns its manifest."""
    with whole_folder(flags.output, MANIFEST, flags.overwrite, _REPLACED) as building:
        vocab_file = _vocabulary_file(flags, sources, console)
        manifest = _build_inside(building, flags, sources, vocab_file, console)
        with LINE.doing("moving the store to its place"):
            write_manifest(building, manifest)
    return manifest


def _check_documents(flags: BuildFlags, sources: list[Source]) -> None:
    """Refuse a single document before anything is trained or encoded.

    Reads up to the second document, which mostly is on the first pages of the first file.
    """
    documents = itertools.chain.from_iterable(
        read_documents(source, flags.text) for source in sources
    )
    count = len(list(itertools.islice(filter(any, documents), 2)))
    if count < 2:
        raise ValueError(impossible(count, flags.text.documents))


@dataclasses.dataclass(frozen=True)
class _VocabularyFile:
    name: str
    file_bytes: bytes
    character_coverage: float | None  # None where it was read, not trained


def _vocabulary_file(
    flags: BuildFlags, sources: list[Source], console: rich.console.Console
) -> _VocabularyFile:
    """Read and check the vocabulary file, or train one on the input."""
    if flags.vocab:
        vocabulary = load_vocabulary(flags.vocab, flags.lowercase)
        return _VocabularyFile(FILE_NAMES[vocabulary.kind], vocabulary.file_bytes, None)
    label = f"training a {flags.train_vocab} vocabulary of {flags.vocab_size:,}"
    with progress_bar(console, label, total=None) as advance:
        trained = train_vocabulary(
            flags.train_vocab,
            lambda: training_text(
                sources, flags.text, flags.cleaning, TEXT_CHARS[flags.train_vocab], advance
            ),
            flags.vocab_size,
            flags.lowercase,
            flags.reserved_pieces,
            flags.character_coverage,
        )
    name = FILE_NAMES[TRAINED[flags.train_vocab]]
    return _VocabularyFile(name, trained.file_bytes, trained.character_coverage)


def _build_inside(
    building: pathlib.Path,
    flags: BuildFlags,
    sources: list[Source],
    vocab_file: _VocabularyFile,
    console: rich.console.Console,
) -> dict[str, Any]:
    """Write the vocabulary and both splits into the working folder; returns the manifest."""
    (building / vocab_file.name).write_bytes(vocab_file.file_bytes)
    vocabulary = load_vocabulary(building / vocab_file.name, flags.lowercase, checks_case=False)
    write_tokenizer_json(vocabulary, building)
    spool = Spool(building / "spool")
    counts = dict.fromkeys(COUNTED, 0)
    documents_of = [0] * len(sources)
    lost: collections.Counter[int] = collections.Counter()
    label = f"encoding {count_of_files(len(sources))} with {_encoded_by(flags)}"
    total_bytes = None if flags.runner == BEAM else sum(source.stored_bytes for source in sources)
    with (
        progress_bar(console, label, total_bytes) as advance,
        # Closed at once after an error: its processes end before it is told.
        contextlib.closing(_encoded(flags, sources, vocabulary, spool, advance)) as encoded,
    ):
        for chunk in encoded:
            spool.append(chunk)
            for name, count in chunk.counts.items():
                counts[name] += count
            for number, count in chunk.source_documents.items():
                documents_of[number] += count
            lost.update(chunk.lost_characters)
    counts[FILES_WITHOUT_TEXT] = documents_of.count(0)
    selection = _select(spool, flags.cleaning, counts, console)
    splits = _part(spool, selection, building, vocabulary, flags, console)
    shutil.rmtree(spool.directory)
    found = BuildFound(
        counts, documents_of, selection.near_duplicates, lost, vocab_file.character_coverage
    )
    return build_manifest(building, flags, vocabulary, splits, sources, found)


def _encoded_by(flags: BuildFlags) -> str:
    if flags.runner == BEAM:
        return "Apache Beam"
    return f"{flags.workers} process{'' if flags.workers == 1 else 'es'}"


def _encoded(
    flags: BuildFlags,
    sources: list[Source],
    vocabulary: Vocabulary,
    spool: Spool,
    advance: Callable[[int], None],
) -> Generator[EncodedChunk, None, None]:
    """The chunks of the corpus in the order of the input, made by the runner that was asked for."""
    text, cleaning = flags.text, flags.cleaning
    if flags.runner == BEAM:
        return encode_with_beam(
            sources, vocabulary, text, cleaning, flags.beam_options, spool.directory
        )
    chunks = read_chunks(list(enumerate(sources)), text, advance)
    return encode_corpus(chunks, vocabulary, text, cleaning, flags.workers)


def _select(
    spool: Spool,
    cleaning: CleaningOptions,
    counts: dict[str, int],
    console: rich.console.Console,
) -> Selection:
    if not cleaning.compares_documents:
        return select(spool, cleaning, counts)
    with progress_bar(console, "finding duplicates", total=None):
        return select(spool, cleaning, counts)


def _part(
    spool: Spool,
    selection: Selection,
    building: pathlib.Path,
    vocabulary: Vocabulary,
    flags: BuildFlags,
    console: rich.console.Console,
) -> dict[str, dict[str, int]]:
    """Write both splits; returns what the manifest says of each."""
    hashes = selection.side_hashes[selection.keeps_document]
    is_heldout = choose_heldout(hashes, flags.holdout, flags.text.documents)
    writers = {
        name: SplitWriter(
            building / name,
            token_dtype(vocabulary.size),
            vocabulary.size,
            vocabulary.special_ids["unk"],
        )
        for name in (TRAIN, HELDOUT)
    }
    with progress_bar(console, "writing the splits", total=spool.tokens_bytes) as advance:
        write_splits(spool, selection, is_heldout, writers[TRAIN], writers[HELDOUT], advance)
    return {name: writer.close() for name, writer in writers.items()}


if __name__ == "__main__":
    with LibraryLog() as log:
        if any(tfds_documents.PREFIX in flag for flag in sys.argv):
            log.hold()  # tensorflow greets
        exit_code = main(say=log.say)
    sys.exit(exit_code)
