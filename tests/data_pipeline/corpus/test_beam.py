"""A store that Apache Beam builds has the bytes of one that a process builds."""

import importlib.util
import json
import pathlib
import random
import re

import pytest

from data_pipeline.build import main
from data_pipeline.corpus import beam as beam_encoding
from data_pipeline.corpus import encode
from data_pipeline.corpus.beam import group_sources
from data_pipeline.read.sources import Source
from tests.data_pipeline.encoded import write_list
from tests.data_pipeline.test_build import contents

pytest.importorskip("apache_beam", reason="needs the extra [beam]")


@pytest.fixture
def corpus(tmp_path) -> str:
    """Seven files of documents of a few lines, with copies and near copies."""
    rng = random.Random(6)
    lines = [" ".join(rng.choices(["so", "it", "is", "its", "no"], k=12)) + "." for _ in range(50)]
    documents: list[str] = []
    for _ in range(90):
        copied = rng.random() < 0.2 and documents
        documents.append(
            rng.choice(documents) if copied else "\n".join(rng.sample(lines, rng.randint(1, 5)))
        )
    for number in range(7):
        part = documents[number::7]
        (tmp_path / f"{number}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in part)
        )
    write_list(tmp_path / "vocab.txt", ["so", "it", "##s", "is", ",", "."])
    return f"{tmp_path}/*.jsonl"


def build(corpus: str, folder: pathlib.Path, name: str, *more: str) -> int:
    output, vocab = folder / name, folder / "vocab.txt"
    argv = [f"--input={corpus}", f"--output={output}", f"--vocab={vocab}", "--sentences=lines"]
    return main([*argv, "--holdout=0.2", *more])


CLEANING = [
    *("--normalize=nfkc", "--min_document_chars=5", "--near_duplicates=together"),
    *("--drop_duplicate_documents=true", "--drop_duplicate_lines=true"),
]


@pytest.mark.slow
def test_a_store_from_beam_has_the_same_bytes(corpus, tmp_path, monkeypatch):
    assert build(corpus, tmp_path, "local", "--workers=1", *CLEANING) == 0
    monkeypatch.setattr(beam_encoding, "_GROUP_BYTES", 2000)  # two or three files
    monkeypatch.setattr(encode, "CHUNK_CHARS", 300)
    elsewhere = tmp_path / "temp"
    elsewhere.mkdir()
    beam = ("--runner=beam", f"--beam_options=--temp_location={elsewhere}")
    assert build(corpus, tmp_path, "beam", *beam, *CLEANING) == 0
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    manifest = json.loads((tmp_path / "beam" / "manifest.json").read_text())
    assert manifest["dropped"]["duplicate_lines"] > 0
    assert list(elsewhere.iterdir()) == []


def test_a_bad_source_is_the_sentence_that_one_process_says(corpus, tmp_path, capsys):
    (tmp_path / "5.jsonl").write_text('{"text": "so it is."}\n{"text"')
    sentences = []
    for runner in ("local", "beam"):
        assert build(corpus, tmp_path, runner, f"--runner={runner}") == 2
        sentences.append(capsys.readouterr().err)
        assert not (tmp_path / runner).exists()
    assert sentences[0] == sentences[1]
    assert re.match(r"error: .*5.jsonl line 2 is not JSON.*\n$", sentences[0])


def test_a_pipeline_that_fails_is_one_sentence(corpus, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError("the worker's disk is full")

    monkeypatch.setattr(beam_encoding, "_write", fail)
    assert build(corpus, tmp_path, "store", "--runner=beam") == 2
    error = capsys.readouterr().err
    assert "error: the Beam pipeline did not finish (" in error
    assert "the worker's disk is full" in error.split("did not finish")[1]
    assert not (tmp_path / "store").exists()


def test_workers_that_write_to_a_place_of_their_own_are_found_out(
    corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(beam_encoding, "_write", lambda *_: None)
    assert build(corpus, tmp_path, "store", "--runner=beam") == 2
    assert "wrote to a folder of their own; give one" in capsys.readouterr().err


OPTIONS = {
    "--direct_num_wrkers=2": "has '--direct_num_wrkers=2', which Beam does not know; it",
    "--streaming four words": "has 'four words', which Beam does not know",
    "--direct_num_workers=two": "argument --direct_num_workers: invalid int value: 'two'",
    "--direct_running_mode=threads": "argument --direct_running_mode: invalid choice",
    "--temp_location='gs://b": "which a shell cannot read (No closing quotation)",
    "--runner=DirektRunner": "asks for --runner=DirektRunner, which is not available (Unexp",
    "--runner=no.such.Runner": "asks for --runner=no.such.Runner, which is not available (No mo",
}
BAD_FLAGS = [
    (["--beam_options=--x"], "--beam_options is --x, but --runner is local, and only --runner=b"),
    (["--runner=beam", "--workers=2"], "--workers is 2, but with --runner=beam Beam starts"),
    *((["--runner=beam", f"--beam_options={given}"], words) for given, words in OPTIONS.items()),
]


@pytest.mark.parametrize(("flags", "sentence"), BAD_FLAGS)
def test_flags_that_do_nothing_and_options_that_beam_would_ignore_or_die_of_are_refused(
    flags, sentence, corpus, tmp_path, capsys
):
    assert build(corpus, tmp_path, "store", *flags) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: --.*\n", error)
    assert sentence in error


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--runner=DirectRunner --direct_num_workers 2 --direct_running_mode=multi_processing",
        "--temp_location=gs://b/t --region=europe-west1 --project=p --num_workers=3 --streaming",
        "--runner=FlinkRunner --flink_master=host:8081 --parallelism=7",
        "--runner=PortableRunner --job_endpoint=host:8099 --an_option_of_the_job_server=1",
    ],
)
def test_options_that_beam_knows_are_taken(options):
    beam_encoding.check_options(options)


def test_without_apache_beam_the_sentence_names_the_extra(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert build(corpus, tmp_path, "store", "--runner=beam") == 2
    assert re.search(r"pip install .*\[beam\]'", capsys.readouterr().err)


def test_small_files_are_read_in_groups_and_large_ones_alone():
    sizes = [5, 60 << 20, 30 << 20, 1, 100 << 20, 1, 1]
    sources = [Source(str(number), size) for number, size in enumerate(sizes)]
    found = [[number for number, _ in group] for group in group_sources(sources)]
    assert found == [[0, 1], [2, 3], [4], [5, 6]]
