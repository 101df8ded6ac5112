"""Encode a corpus with Apache Beam, on a cluster or locally, into the chunks of a local build.

Sources are read in groups, each by one worker from start to end; their chunks are distributed to
all workers, and each is encoded into a file. When the pipeline is done, the files are read back in
the order of the input, so the store has the bytes of a local build. Apache Beam is an extra, and
imported only if it is used.
"""

import argparse
import dataclasses
import functools
import importlib.util
import io
import json
import pathlib
import shlex
import tempfile
import uuid
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from data_pipeline.corpus.encode import ChunkEncoder, EncodedChunk, TextChunk, read_chunks
from data_pipeline.corpus.spool import read_chunk, write_chunk
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address, make_install_command
from data_pipeline.read.cleaning import CleaningOptions
from data_pipeline.read.documents import Source
from data_pipeline.read.options import TextOptions
from data_pipeline.vocab import Vocabulary, load_recorded

# Stored bytes that one worker reads from start to end: many small files are one group, and a
# larger file is a group of its own.
_GROUP_BYTES = 64 << 20
# Names of the files of a group: one per chunk, by its number, and one with the number of chunks.
_PART_NAME, _END_NAME = "{:06d}-{:06d}.chunk", "{:06d}.end"

NumberedSources = Sequence[tuple[int, Source]]


@dataclasses.dataclass(frozen=True)
class BeamWork:
    """Hold the settings that are pickled for every worker; the vocabulary travels as bytes."""

    folder: str  # place of the encoded chunks: local, shared or gs://
    vocab_name: str
    vocab_bytes: bytes
    rules: tuple[tuple[str, Any], ...]  # items of Vocabulary.recorded_rules
    text: TextOptions
    cleaning: CleaningOptions


def check_installed() -> None:
    """Raise Refused if Apache Beam cannot be imported."""
    if importlib.util.find_spec("apache_beam") is None:
        raise Refused(
            "--runner is beam, but Apache Beam is not installed "
            f"({make_install_command('beam')}); or build on this machine with --runner=local"
        )


def check_options(beam_options: str) -> None:
    """Raise Refused if Beam would ignore an option or exit because of it.

    Options unknown to Beam are allowed for a runner with its own job server, such as Flink's.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.portability.portable_runner import PortableRunner
    from apache_beam.runners.runner import create_runner

    try:
        words = shlex.split(beam_options)
    except ValueError as error:
        raise Refused(
            f"--beam_options is {beam_options!r}, which a shell cannot read ({error}); close the "
            "quotation"
        ) from error
    options = PipelineOptions(words)
    runner_name = options.view_as(StandardOptions).runner or StandardOptions.DEFAULT_RUNNER
    try:
        runner = create_runner(runner_name)  # importing it registers its options
    except (ValueError, ImportError, AttributeError) as error:
        raise Refused(
            f"--beam_options asks for --runner={runner_name}, which is not available ({error}); "
            "Dataflow's is in apache-beam[gcp], and without --runner Beam takes DirectRunner"
        ) from error

    def check_parsed(parser: argparse.ArgumentParser) -> None:
        parser.exit_on_error = False
        try:
            _, unknown = parser.parse_known_args(words)
        except argparse.ArgumentError as error:
            raise Refused(f"--beam_options is {beam_options!r}, but {error}") from error
        if unknown and not isinstance(runner, PortableRunner):
            raise Refused(
                f"--beam_options has {' '.join(unknown)!r}, which Beam does not know; it would be "
                "ignored: correct it or omit it"
            )

    options.get_all_options(add_extra_args_fn=check_parsed)


def encode_with_beam(
    sources: Sequence[Source],
    vocabulary: Vocabulary,
    text: TextOptions,
    cleaning: CleaningOptions,
    beam_options: str,
    local_folder: pathlib.Path,
) -> Generator[EncodedChunk, None, None]:
    """Run the pipeline, then yield the chunks in the order of the input.

    `beam_options` are Beam's own flags. Encoded chunks are kept in their --temp_location, else in
    `local_folder`, which every worker must be able to write. Raises Refused for a bad source, a
    pipeline that did not finish, or one whose files cannot be read from this machine.
    """
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

    options = PipelineOptions(shlex.split(beam_options))
    shared = options.view_as(GoogleCloudOptions).temp_location
    folder = FileSystems.join(shared or str(local_folder), f"bert_jax-{uuid.uuid4().hex}")
    work = BeamWork(
        folder,
        vocabulary.file_name,
        vocabulary.file_bytes,
        tuple(vocabulary.recorded_rules.items()),
        text,
        cleaning,
    )
    groups = list(enumerate(group_sources(sources)))
    FileSystems.mkdirs(folder)
    try:
        _run(groups, work, options)
        for group, _ in groups:
            yield from _read_back(group, folder)
    finally:
        # Beam requires the slash.
        FileSystems.delete([f"{folder}/" if is_address(folder) else folder])


def group_sources(sources: Sequence[Source]) -> Iterator[NumberedSources]:
    """Yield groups of consecutive numbered sources, each of at most _GROUP_BYTES or one source."""
    group: list[tuple[int, Source]] = []
    group_bytes = 0
    for number, source in enumerate(sources):
        if group and group_bytes + source.stored_bytes > _GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
        group.append((number, source))
        group_bytes += source.stored_bytes
    if group:
        yield group


def _run(groups: list[tuple[int, NumberedSources]], work: BeamWork, options: Any) -> None:
    """Run the pipeline to its end; raise Refused if it failed, whatever the runner raised."""
    import apache_beam as beam

    try:
        with beam.Pipeline(options=options) as pipeline:
            (
                pipeline
                | "groups of sources" >> beam.Create(groups)
                | "to any worker" >> beam.Reshuffle()
                | "read" >> beam.FlatMap(_read_group, work.folder, work.text)
                | "chunks to any worker" >> beam.Reshuffle()
                | "encode" >> beam.Map(_encode_part, work)
            )
    except Exception as error:  # the runners' errors have no common base class
        if "KeyboardInterrupt" in str(error):  # DirectRunner wraps that too
            raise KeyboardInterrupt from error
        *_, last = str(error).strip().split("\n")
        raise Refused(
            f"the Beam pipeline did not finish ({type(error).__name__}: {last}); nothing was "
            "written: see the runner's log, or build with --runner=local"
        ) from error


def _read_group(
    numbered: tuple[int, NumberedSources], folder: str, text: TextOptions
) -> Iterator[tuple[str, TextChunk]]:
    """Yield the chunks of a group with the names of their files; then write the group's end file.

    It has the number of chunks, or the error of a source, which is not raised: Beam would retry in
    vain.
    """
    group, sources = numbered
    chunks = 0
    end: dict[str, Any] = {}
    try:
        for chunk in read_chunks(sources, text):
            yield _PART_NAME.format(group, chunks), chunk
            chunks += 1
        end["chunks"] = chunks
    except Refused as error:
        end["refused"] = str(error)
    _write(folder, _END_NAME.format(group), json.dumps(end).encode())


def _encode_part(part: tuple[str, TextChunk], work: BeamWork) -> None:
    name, chunk = part
    data = io.BytesIO()
    write_chunk(data, _encoder(work).encode(chunk))
    _write(work.folder, name, data.getvalue())


@functools.lru_cache(maxsize=1)
def _encoder(work: BeamWork) -> ChunkEncoder:
    """Make the encoder of a process, once: its vocabulary keeps a cache of words."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / work.vocab_name
        path.write_bytes(work.vocab_bytes)
        return ChunkEncoder(load_recorded(path, dict(work.rules)), work.text, work.cleaning)


def _read_back(group: int, folder: str) -> Iterator[EncodedChunk]:
    """Yield the chunks of a group in order, and remove their files."""
    from apache_beam.io.filesystems import FileSystems

    end_path = FileSystems.join(folder, _END_NAME.format(group))
    if not FileSystems.exists(end_path):
        raise Refused(
            f"the Beam pipeline finished, but {end_path} does not exist: its workers wrote to a "
            "folder of their own; give one that they and this machine can reach, as in "
            "--beam_options='--temp_location=gs://BUCKET/temp ...'"
        )
    with FileSystems.open(end_path) as file:
        end = json.loads(file.read())
    if "refused" in end:
        raise Refused(end["refused"])
    for number in range(end["chunks"]):
        path = FileSystems.join(folder, _PART_NAME.format(group, number))
        with FileSystems.open(path) as file:
            yield read_chunk(io.BytesIO(file.read()))
        FileSystems.delete([path])


def _write(folder: str, name: str, data: bytes) -> None:
    """Write a file atomically: Beam may do the same work twice, even at the same time."""
    from apache_beam.io.filesystems import FileSystems

    path = FileSystems.join(folder, name)
    unfinished = f"{path}.{uuid.uuid4().hex}"
    with FileSystems.create(unfinished) as file:
        file.write(data)
    FileSystems.rename([unfinished], [path])
