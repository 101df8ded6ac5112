"""Build a store from text files: python -m data_pipeline.build --help."""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import rich.console

from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.main import run_main
from data_pipeline.cli.terminal import make_console
from data_pipeline.corpus.beam import encode_with_beam
from data_pipeline.corpus.encode import EncodedChunk, encode_corpus, read_chunks
from data_pipeline.corpus.lost_characters import record_lost_characters
from data_pipeline.corpus.options import BEAM, COMMAND, BuildFlags, check_flags
from data_pipeline.corpus.selection import (
    Selection,
    choose_heldout,
    describe_too_few,
    select,
    write_splits,
)
from data_pipeline.corpus.spool import Spool
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import Destination, check_new_folder, new_folder
from data_pipeline.io.errors import is_transient
from data_pipeline.read import tfds
from data_pipeline.read.cleaning import Changed, Counted, Dropped
from data_pipeline.read.documents import Source, read_sources
from data_pipeline.read.sources import find_sources
from data_pipeline.report.build import describe_file_count, print_report
from data_pipeline.report.progress import progress_bar, show_progress
from data_pipeline.report.vocabularies import (
    load_compared,
    print_comparison,
    read_compared,
    score_vocabulary,
)
from data_pipeline.store import FORMAT, HELDOUT, MANIFEST, PARTS, TRAIN
from data_pipeline.store.upload import (
    check_destination,
    count_upload_bytes,
    new_scratch,
    unmark_destination,
    upload_store,
)
from data_pipeline.store.writer import SplitWriter, make_manifest, write_manifest
from data_pipeline.vocab import Vocabulary, load_recorded, load_vocabulary, token_dtype
from data_pipeline.vocab.sentencepiece_model import RECORDED
from data_pipeline.vocab.tokenizer_json import write_tokenizer_json
from data_pipeline.vocab.train import TEXT_CHARS, TRAINED, read_training_documents, train_vocabulary

_LIBRARIES = ("datasketch", "numpy", "sentencepiece", "sentencex", "tokenizers")
_LISTED_BYTES = 80  # size of a source's entry in the manifest, without its path


def main(argv: Sequence[str] | None = None) -> int:
    """Build the store that the flags describe; return the exit code."""
    console = make_console(highlight=False)
    return run_main(
        COMMAND,
        lambda _, flags: build(check_flags(flags), console),
        argv,
        hides_libraries=any(tfds.PREFIX in argument for argument in sys.argv),
    )


def build(flags: BuildFlags, console: rich.console.Console) -> None:
    """Make the store that the flags describe, or raise and leave --output as it was.

    With --compare_vocabs print how each vocabulary suits the text instead.

    Raises:
      Refused, OSError: the flags, the input, the vocabulary or the output are wrong.
    """
    started_secs = time.perf_counter()
    if flags.compare_vocabs:
        _compare_vocabularies(flags, console)
        return
    if flags.address:
        _build_in_bucket(flags, console, started_secs)
        return
    check_new_folder(_destination(flags))
    manifest = _build_folder(flags, _find_sources(flags), console)
    seconds = time.perf_counter() - started_secs
    print_report(console, pathlib.Path(flags.output), manifest, seconds, _describe_runner(flags))


def _compare_vocabularies(flags: BuildFlags, console: rich.console.Console) -> None:
    with LINE.doing("reading the vocabularies"):
        loaded = load_compared(flags.compare_vocabs.split(","), flags.sentencepiece_rules)
    with LINE.doing("listing the files"):
        sources = find_sources(flags.input, flags.text)
    text = read_compared(sources, flags.text, flags.cleaning)
    scores = {}
    for path, vocabulary in loaded.items():
        with show_progress(f"encoding by {path}", text.chars) as advance:
            scores[path] = score_vocabulary(vocabulary, text, advance)
    print_comparison(console, text, scores)


def _build_in_bucket(flags: BuildFlags, console: rich.console.Console, started_secs: float) -> None:
    """Build in a folder of --scratch, copy the store to its address and remove the folder.

    A store that was built and cannot be copied is kept, and the error names it.
    """
    check_destination(flags.address, flags.overwrite)
    with contextlib.ExitStack() as undo:
        undo.callback(unmark_destination, flags.address)
        sources = _find_sources(flags)
        scratch = new_scratch(flags.scratch, sum(source.stored_bytes for source in sources))
        undo.callback(shutil.rmtree, scratch, ignore_errors=True)
        folder = scratch / pathlib.PurePosixPath(flags.address).name
        manifest = _build_folder(dataclasses.replace(flags, output=str(folder)), sources, console)
        try:
            total_bytes = count_upload_bytes(folder)
            with progress_bar(console, f"copying to {flags.address}", total_bytes) as advance:
                upload_store(folder, flags.address, manifest, advance)
            seconds = time.perf_counter() - started_secs
            runner = _describe_runner(flags)
            print_report(console, folder, manifest, seconds, runner, flags.address)
        except Exception as error:
            undo.pop_all()
            kept = (
                f"the store is complete in {folder}; copy it by: gcloud storage cp --recursive "
                f"'{folder}/*' {flags.address}/"
            )
            if not isinstance(error, OSError | Refused):  # a bug
                error.add_note(kept)
                raise
            kind = ConnectionError if is_transient(error, flags.address) else Refused
            raise kind(f"{error}; {kept}") from error
        undo.pop_all()
    shutil.rmtree(scratch, ignore_errors=True)


def _find_sources(flags: BuildFlags) -> list[Source]:
    """Find the input, and refuse what is wrong with it before anything is trained or encoded."""
    with LINE.doing("listing the files"):
        sources = find_sources(flags.input, flags.text)
    listed_bytes = sum(len(source.address.encode()) + _LISTED_BYTES for source in sources)
    if listed_bytes > small_files.MAX_BYTES:
        raise Refused(
            f"--input has {describe_file_count(len(sources))}, more than a store's manifest of "
            f"{small_files.MAX_BYTES:,} bytes can list; join them, as in JSON lines"
        )
    if flags.vocab:
        load_vocabulary(flags.vocab, flags.lowercase, rules=flags.sentencepiece_rules)
    # Reads little: the second document is usually near the start of the first file.
    with_text = (each for _, each in read_sources(enumerate(sources), flags.text) if any(each))
    count = len(list(itertools.islice(with_text, 2)))
    if count < 2:
        raise Refused(describe_too_few(count, flags.text.documents))
    return sources


def _destination(flags: BuildFlags) -> Destination:
    output = pathlib.Path(flags.output)
    return Destination(output, MANIFEST, FORMAT, flags.overwrite, PARTS)


def _describe_runner(flags: BuildFlags) -> str:
    if flags.runner == BEAM:
        return "Apache Beam"
    return f"{flags.workers} process{'' if flags.workers == 1 else 'es'}"


def _build_folder(
    flags: BuildFlags, sources: list[Source], console: rich.console.Console
) -> dict[str, Any]:
    """Make the store in the folder --output; return its manifest."""
    with new_folder(_destination(flags)) as building:
        vocabulary, coverage = _make_vocabulary(building, flags, sources, console)
        write_tokenizer_json(vocabulary, building)
        spool = Spool(building / "spool")
        label = f"encoding {describe_file_count(len(sources))} with {_describe_runner(flags)}"
        total_bytes = None if flags.runner == BEAM else sum(each.stored_bytes for each in sources)
        with (
            progress_bar(console, label, total_bytes) as advance,
            # Closed at once after an error: its processes end before the error is printed.
            contextlib.closing(_encode(flags, sources, vocabulary, spool, advance)) as encoded,
        ):
            for chunk in encoded:
                spool.append(chunk)
        spool.counts[Dropped.FILES_WITHOUT_TEXT] = len(sources) - len(spool.source_documents)
        with contextlib.ExitStack() as progress:
            if flags.cleaning.compares_documents:
                progress.enter_context(progress_bar(console, "finding duplicates", total=None))
            selection = select(spool, flags.cleaning)
        splits = _write_splits(spool, selection, building, vocabulary, flags, console)
        near = selection.near_duplicates
        del selection  # unmaps its files: NFS would keep them in the folder under other names
        shutil.rmtree(spool.directory)
        content = _describe_build(flags, vocabulary, coverage, splits, sources, spool, near)
        manifest = make_manifest(building, vocabulary, content)
        with LINE.doing("moving the store to its place"):
            write_manifest(building, manifest)
    return manifest


def _make_vocabulary(
    building: pathlib.Path, flags: BuildFlags, sources: list[Source], console: rich.console.Console
) -> tuple[Vocabulary, float | None]:
    """Write the given vocabulary, or a trained one; return it and its coverage, None if given."""
    coverage = None
    if flags.vocab:
        given = load_vocabulary(flags.vocab, flags.lowercase, rules=flags.sentencepiece_rules)
        path, file_bytes = building / given.file_name, given.file_bytes
    else:
        kind = flags.train_vocab
        label = f"training a {kind} vocabulary of {flags.vocab_size:,}"
        with progress_bar(console, label, total=None) as advance:
            trained = train_vocabulary(
                kind,
                lambda: itertools.chain.from_iterable(
                    read_training_documents(
                        sources, flags.text, flags.cleaning, TEXT_CHARS[kind], advance
                    )
                ),
                flags.vocab_size,
                flags.lowercase,
                flags.reserved_pieces,
                flags.character_coverage,
            )
        path, file_bytes = building / TRAINED[kind], trained.file_bytes
        coverage = trained.character_coverage
    path.write_bytes(file_bytes)
    rules = {"lowercase": flags.lowercase, RECORDED: flags.sentencepiece_rules}
    return load_recorded(path, rules), coverage


def _encode(
    flags: BuildFlags,
    sources: list[Source],
    vocabulary: Vocabulary,
    spool: Spool,
    advance: Callable[[int], None],
) -> Generator[EncodedChunk, None, None]:
    """Yield the chunks of the corpus in the order of the input, from the chosen runner."""
    text, cleaning = flags.text, flags.cleaning
    if flags.runner == BEAM:
        return encode_with_beam(
            sources, vocabulary, text, cleaning, flags.beam_options, spool.directory
        )
    chunks = read_chunks(list(enumerate(sources)), text, advance)
    return encode_corpus(chunks, vocabulary, text, cleaning, flags.workers)


def _write_splits(
    spool: Spool,
    selection: Selection,
    building: pathlib.Path,
    vocabulary: Vocabulary,
    flags: BuildFlags,
    console: rich.console.Console,
) -> dict[str, dict[str, int]]:
    """Write both splits; return their entries in the manifest."""
    hashes = selection.side_hashes[selection.keeps_document]
    is_heldout = choose_heldout(hashes, flags.holdout, flags.text.documents)
    dtype, unk_id = token_dtype(vocabulary.size), vocabulary.special_ids["unk"]
    writers = {
        name: SplitWriter(building / name, dtype, vocabulary.size, unk_id)
        for name in (TRAIN, HELDOUT)
    }
    with progress_bar(console, "writing the splits", total=spool.tokens_bytes) as advance:
        write_splits(spool, selection, is_heldout, writers[TRAIN], writers[HELDOUT], advance)
    return {name: writer.close() for name, writer in writers.items()}


def _describe_build(
    flags: BuildFlags,
    vocabulary: Vocabulary,
    character_coverage: float | None,
    splits: dict[str, dict[str, int]],
    sources: list[Source],
    spool: Spool,
    near_duplicates: dict[str, int],
) -> dict[str, Any]:
    """Return the content of the manifest."""
    both = splits.values()
    return {
        "token_dtype": str(token_dtype(vocabulary.size)),
        "splits": splits,
        "unknown_token_share": sum(split["unknown_tokens"] for split in both)
        / sum(split["tokens"] for split in both),
        "longest_sentence_tokens": max(split["longest_sentence_tokens"] for split in both),
        "dropped": {reason: spool.counts[reason] for reason in Dropped},
        "changed": {change: spool.counts[change] for change in Changed},
        "counted": {name: spool.counts[name] for name in Counted},
        "near_duplicates": near_duplicates,
        "lost_characters": record_lost_characters(spool.lost_characters),
        "holdout": flags.holdout,
        "build": {
            **dataclasses.asdict(flags.text),
            "lowercase": flags.lowercase,
            "train_vocab": flags.train_vocab,
            "character_coverage": character_coverage,
            **dataclasses.asdict(flags.cleaning),
        },
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "sources": [
            {
                "path": source.address,
                "bytes": source.stored_bytes,
                "documents": spool.source_documents[number],
            }
            for number, source in enumerate(sources)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
