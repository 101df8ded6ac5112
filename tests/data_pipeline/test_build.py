"""The build from the command line: the store against plain Python, and all that can go wrong."""

import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tokenizers

from data_pipeline import build
from data_pipeline.build import main
from data_pipeline.corpus import encode
from data_pipeline.corpus.options import COMMAND, check_flags
from data_pipeline.read.cleaning import Dropped
from data_pipeline.report import build as build_report
from data_pipeline.report.findings import find_in_store
from data_pipeline.report.health import measure
from data_pipeline.store import open_store
from data_pipeline.vocab import load_vocabulary
from tests.data_pipeline import wordpiece_oracle
from tests.data_pipeline.encoded import write_list
from tests.faults.runs import ROOT

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def corpus_text(documents: int) -> str:
    blocks = [
        "\n".join(f"Line {i} of document {d}, the {d * i}th." for i in range(1 + d % 5))
        for d in range(documents)
    ]
    return "\n\n".join(blocks) + "\n"


@pytest.fixture
def corpus(tmp_path) -> pathlib.Path:
    path = tmp_path / "corpus.txt"
    path.write_text(corpus_text(60))
    return path


@pytest.fixture
def vocab_path(tmp_path) -> pathlib.Path:
    return write_vocabulary(tmp_path / "pieces.txt")


def write_vocabulary(path: pathlib.Path) -> pathlib.Path:
    pieces = [*LETTERS, *("##" + c for c in LETTERS), ",", ".", "line", "document"]
    return write_list(path, pieces)


def flags(corpus: object, output: object, vocab: object, *more: str) -> list[str]:
    given = [f"--input={corpus}", f"--output={output}", "--workers=1", "--sentences=lines", *more]
    return [f"--vocab={vocab}", *given] if vocab else given


def contents(directory: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_the_store_holds_what_plain_python_makes_of_the_text(corpus, vocab_path, tmp_path):
    assert main(flags(corpus, tmp_path / "store", vocab_path, "--holdout=0.2")) == 0
    opened = open_store(tmp_path / "store")
    id_of = {piece: i for i, piece in enumerate(vocab_path.read_text().split())}
    expected: dict[str, list[list[list[int]]]] = {"train": [], "heldout": []}
    for block in corpus.read_text().strip().split("\n\n"):
        plain = re.sub(r"\d", "0", " ".join(block.casefold().split())).encode()
        value = int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big")
        side = "heldout" if value < 0.2 * 2**64 else "train"
        expected[side].append(
            [wordpiece_oracle.encode(line, id_of, lowercase=True) for line in block.split("\n")]
        )
    for split in (opened.train, opened.heldout):
        sentences = np.split(split.token_ids, split.sentence_offsets[1:-1])
        documents = np.split(np.arange(split.sentences), split.document_offsets[1:-1])
        assert [[sentences[s].tolist() for s in document] for document in documents] == expected[
            split.name
        ]


def test_copies_that_are_dropped_do_not_count_where_a_split_is_filled_up(vocab_path, tmp_path):
    """The two lowest hashes are held out where the share gives too few; ten copies are one."""

    def value(block):
        return hashlib.blake2b(block.casefold().encode(), digest_size=8).digest()

    blocks = sorted((f"document {letter} , line {letter}" for letter in "abcdef"), key=value)
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join([*blocks, *[blocks[0]] * 9]) + "\n")
    wanted = ["--holdout=1e-12", "--drop_duplicate_documents=true", "--documents=blank_line"]
    assert main(flags(path, tmp_path / "store", vocab_path, *wanted)) == 0
    opened = open_store(tmp_path / "store")
    id_of = {piece: i for i, piece in enumerate(vocab_path.read_text().split())}
    held_out = [wordpiece_oracle.encode(block, id_of, lowercase=True) for block in blocks[:2]]
    assert opened.train.documents == 4
    assert opened.heldout.token_ids.tolist() == [*held_out[0], *held_out[1]]


@pytest.mark.slow
def test_the_advice_about_copies_on_both_sides_leaves_none(vocab_path, tmp_path):
    """Composed and decomposed accents are texts of their own until the vocabulary drops them."""
    path, forms = tmp_path / "corpus.txt", ("NFC", "NFD")
    texts = [f"line \u00e9{letter}" for letter in LETTERS]
    path.write_text("\n\n".join(unicodedata.normalize(f, text) for text in texts for f in forms))

    def find_leak(name: str, *more: str) -> list[str]:
        argv = flags(path, tmp_path / name, vocab_path, "--holdout=0.5", *more)
        assert main([*argv, "--documents=blank_line"]) == 0
        findings = find_in_store(measure(open_store(tmp_path / name), 32, 0))
        return [each for each in findings if "held-out documents also stand in" in each]

    (text,) = find_leak("leaks", "--drop_duplicate_documents=true")
    assert find_leak("mended", *re.findall(r"--\w+=\w+", text)) == []


def test_the_manifest_says_what_went_in_and_what_came_out(corpus, vocab_path, tmp_path):
    other = tmp_path / "other.jsonl.gz"
    other.write_bytes(gzip.compress(b'{"text": "one\\n\xe2\x80\x8b\\n!"}\n{"text": ""}\n'))
    assert main(flags(f"{corpus},{other}", tmp_path / "store", vocab_path, "--holdout=0.2")) == 0
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    splits = manifest["splits"]
    assert splits["train"]["documents"] + splits["heldout"]["documents"] == 61
    without = {"sentences_without_tokens": 1, "documents_without_sentences": 1}
    assert manifest["dropped"] == dict.fromkeys(Dropped, 0) | without
    assert manifest["sources"] == [
        {"path": str(corpus), "bytes": corpus.stat().st_size, "documents": 60},
        {"path": str(other), "bytes": other.stat().st_size, "documents": 2},
    ]
    assert manifest["vocabulary"]["kind"] == "wordpiece"
    assert manifest["vocabulary"]["sha256"] == hashlib.sha256(vocab_path.read_bytes()).hexdigest()
    assert manifest["token_dtype"] == "uint16"
    tokens = splits["train"]["tokens"] + splits["heldout"]["tokens"]
    assert manifest["unknown_token_share"] == 1 / tokens  # the "!"
    arrays = contents(tmp_path / "store")
    for name, described in manifest["arrays"].items():
        assert described["sha256"] == hashlib.sha256(arrays[name]).hexdigest()


@pytest.mark.slow
def test_the_store_is_the_same_for_any_number_of_processes(
    corpus, vocab_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(encode, "CHUNK_CHARS", 200)  # many chunks of few documents
    for workers in ("1", "2"):
        more = (f"--workers={workers}", "--sentences=split")
        assert main(flags(corpus, tmp_path / workers, vocab_path, *more)) == 0
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_a_build_has_a_process_for_each_core_that_it_may_use(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 6}, raising=False)
    flags = COMMAND.read(["--input=a.txt", "--output=store", "--vocab=vocab.txt"])
    assert check_flags(flags).workers == 3
    assert check_flags(dataclasses.replace(flags, workers=5)).workers == 5


@pytest.mark.parametrize(
    "kind, size", [("wordpiece", 200), ("unigram", 80), ("bpe", 80), ("byte_bpe", 280)]
)
def test_a_vocabulary_is_trained_and_kept_in_the_store(corpus, tmp_path, kind, size):
    more = (f"--train_vocab={kind}", f"--vocab_size={size}")
    if kind == "byte_bpe":
        more = (*more, "--lowercase=false")
    assert main(flags(corpus, tmp_path / "store", None, *more)) == 0
    opened = open_store(tmp_path / "store")
    vocabulary = load_vocabulary(opened.vocab_path)
    expected = {"wordpiece": "wordpiece", "byte_bpe": "byte_level"}.get(kind, "sentencepiece")
    assert (vocabulary.kind, vocabulary.size) == (expected, size)
    assert vocabulary.special_ids == opened.special_ids
    first = opened.train.token_ids[: opened.train.sentence_offsets[1]]
    assert vocabulary.decode(first).lower().startswith("line 0 of document")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "store" / "tokenizer.json"))
    line = vocabulary.decode(first)
    assert theirs.encode(line, add_special_tokens=False).ids == first.tolist()


@pytest.mark.slow
def test_bad_text_found_half_way_leaves_nothing(corpus, vocab_path, tmp_path, capsys):
    bad = tmp_path / "bad"
    bad.write_bytes((b"a " * 13 + b"aa\n\n") * 40_000 + b"\xff")  # more than is read at once
    for output in (tmp_path / "new", tmp_path / "store"):
        if output.name == "store":
            assert main(flags(corpus, output, vocab_path)) == 0
        before = contents(tmp_path)
        assert main(flags(bad, output, vocab_path, "--workers=2", "--overwrite=true")) == 2
        assert "byte 0xff at byte offset 1200000" in capsys.readouterr().err
        assert contents(tmp_path) == before
        assert output.exists() == (output.name == "store")


def test_a_vocabulary_trained_on_text_without_a_capital_is_taken(tmp_path):
    corpus = tmp_path / "low.txt"
    corpus.write_text("".join(f"line {i} has no capital in it\n\n" for i in range(200)))
    more = ["--train_vocab=wordpiece", "--vocab_size=150", "--lowercase=false"]
    assert main(flags(corpus, tmp_path / "store", None, *more)) == 0
    assert open_store(tmp_path / "store").manifest["vocabulary"]["lowercase"] is False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_file_of_the_spool_is_mapped_when_it_is_removed(
    corpus, vocab_path, tmp_path, monkeypatch
):
    """NFS keeps such a file under another name, and its folder could not be removed."""
    mapped = []
    remove = shutil.rmtree

    def rmtree(path, **more):
        if pathlib.Path(path).name == "spool":
            mapped.append("/spool/" in pathlib.Path("/proc/self/maps").read_text())
        remove(path, **more)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert main(flags(corpus, tmp_path / "store", vocab_path)) == 0
    assert mapped == [False]


def test_more_files_than_a_manifest_lists_are_refused_at_the_start(
    corpus, vocab_path, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(build.small_files, "MAX_BYTES", len(str(corpus)) + 79)
    assert main(flags(corpus, tmp_path / "store", vocab_path)) == 2
    assert "--input has 1 file, more than a store's manifest of" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_files_without_text_among_others_are_counted_and_named(
    corpus, vocab_path, tmp_path, capsys
):
    empty = {"empty": b"", "blank": b" \n\n\t\n", "nothing.gz": gzip.compress(b""), "z": b""}
    for name, data in empty.items():
        (tmp_path / f"no_{name}").write_bytes(data)
    assert main(flags(f"{corpus},{tmp_path}/no_*", tmp_path / "store", vocab_path)) == 0
    manifest = open_store(tmp_path / "store").manifest
    assert manifest["dropped"]["files_without_text"] == 4
    screen = capsys.readouterr().out
    assert f"no text in  {tmp_path}/no_blank, {tmp_path}/no_empty, {tmp_path}/no_not" in screen
    assert main(flags(f"{tmp_path}/no_*", tmp_path / "none", vocab_path)) == 2
    assert "the input has no document with a token" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_report_shows_counts_findings_and_the_next_command(
    corpus, vocab_path, tmp_path, capsys
):
    corpus.write_text("\n\n".join(f"Only line, no. {chr(97 + i)}!" for i in range(20)))
    assert main(flags(corpus, tmp_path / "store", vocab_path)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"documents +\d+ +\d+ +20\b", shown)
    assert "100% of the documents have one sentence" in shown
    assert "tokens are unknown to the vocabulary" in shown
    assert (
        "python -m bert_jax.train --config=configs/quickstart.py "
        f"--config.data.store={tmp_path}/store --config.objective=mlm "
        "--config.data.segments=doc_sentences --config.data.packed_examples=8 "
        "--workdir=runs/mine\n"
    ) in shown


def test_the_next_command_names_the_run_after_the_folder_that_it_is_in(
    corpus, vocab_path, tmp_path, monkeypatch, capsys
):
    (tmp_path / "my text").mkdir()
    monkeypatch.chdir(tmp_path / "my text")
    assert main(flags(corpus, ".", vocab_path)) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(command)[-2:] == ["--config.data.store=.", "--workdir=runs/my text"]


@pytest.mark.parametrize(
    ("tokens", "config"),
    [(4000, "quickstart"), (5 * 10**5, "auto"), (10**8, "auto"), (10**9, "base")],
)
def test_the_next_command_has_the_config_for_so_much_text(tokens, config):
    manifest = {"splits": {"train": {"tokens": tokens}}}
    assert build_report._choose_config(manifest).split()[0] == f"configs/{config}.py"
    assert (ROOT / "configs" / f"{config}.py").is_file()


@pytest.mark.parametrize("rule", ["blank_line", "line", "file", "chapters"])
def test_a_single_document_is_refused_before_training_without_advice_that_is_in_force(
    corpus, tmp_path, capsys, monkeypatch, rule
):
    monkeypatch.setattr(build, "train_vocabulary", lambda *given: pytest.fail("trained"))
    corpus.write_text("One line.\n" + "Another one.\n" * (rule != "line"))
    argv = [f"--input={corpus}", f"--output={tmp_path}/store", f"--documents={rule}"]
    assert main([*argv, "--train_vocab=wordpiece", "--vocab_size=200"]) == 2
    error = capsys.readouterr().err
    assert "the input, as cleaned, has a single document" in error
    assert ("--documents=blank_line" in error) == (rule in ("file", "chapters"))


@pytest.mark.parametrize(
    ("kind", "coverage"),
    [("wordpiece", ()), ("unigram", ("--character_coverage=0.99",)), ("bpe", ())],
)
def test_text_that_is_not_utf_8_is_one_sentence_while_training_too(
    corpus, tmp_path, capsys, kind, coverage
):
    corpus.write_bytes(corpus_text(60).encode() + b"\n\n\xff")
    more = (f"--train_vocab={kind}", "--vocab_size=80", *coverage)
    assert main(flags(corpus, tmp_path / "store", None, *more)) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"error: {corpus} is not UTF-8: byte 0xff at byte offset \d+ .*\n", error)
    assert not (tmp_path / "store").exists()


def report_of(tmp_path, capsys, text: str | bytes, *more: str) -> tuple[str, dict]:
    """Build a store of a text and return what was printed and the manifest."""
    (tmp_path / "a.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    vocab = write_vocabulary(tmp_path / "pieces.txt")
    argv = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/s", f"--vocab={vocab}", *more]
    assert main([*argv, "--workers=1", "--overwrite=true"]) == 0
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    return " ".join(capsys.readouterr().out.split()), manifest


TWO_SENTENCES = "A line. It is line {0}.\n\n"


@pytest.mark.parametrize(("long", "is_found"), [(200, False), (201, True)])
def test_characters_in_words_too_long_for_wordpiece_are_counted(tmp_path, capsys, long, is_found):
    text = "".join(TWO_SENTENCES.format(number) for number in range(40))
    text += f"A {'b' * long}. And {'c' * 100}-{'d' * 150}.\n"
    out, manifest = report_of(tmp_path, capsys, text)
    lost = long * is_found
    characters = sum(len(word) for word in text.split())
    assert manifest["counted"]["characters"] == characters
    assert abs(manifest["counted"]["long_word_characters"] - lost) <= 1  # the full stop counts too
    assert (f"{lost / characters:.1%} of the characters are lost" in out) == is_found
    assert ("--train_vocab=unigram" in out) == is_found
    assert "over 200" not in out  # a tokenizer.json has a limit of its own, mostly 100


@pytest.mark.parametrize(
    ("marks", "is_found"), [("&amp;", 0), ("&amp; &#39;", 1), ("<br /><br>", 1)]
)
def test_remains_of_html_are_counted(tmp_path, capsys, marks, is_found):
    text = "".join(TWO_SENTENCES.format(number) for number in range(300))
    out, manifest = report_of(tmp_path, capsys, f"{text}A & B &amp C < D > {marks}.\n")
    assert manifest["counted"]["html_marks"] == 1 + is_found
    assert out.count("! the text has 2 tags or escapes of HTML such as <br> or &amp;,") == is_found


def test_the_report_says_what_reading_changed_and_saw(tmp_path, capsys):
    text = "".join(TWO_SENTENCES.format(number) for number in range(40))
    wrapped = text.encode() + "Größe: a\u0301".encode("cp1252", "ignore") + b" \x81 hy-\nphen.\n"
    out, manifest = report_of(tmp_path, capsys, wrapped, "--fallback_encoding=cp1252")
    assert (
        "1 file with lines not in UTF-8, read as cp1252; 1 bytes that it lacks became U+FFFD" in out
    )
    assert "hyphens 1 wrapped lines" in out
    assert manifest["changed"]["replaced_bytes"] == manifest["counted"]["hyphenated_lines"] == 1
    out, manifest = report_of(tmp_path, capsys, text + "a" + "\u0301" * 35, "--normalize=nfc")
    assert manifest["changed"]["cut_combining_marks"] == 5
    assert "5 combining marks" in out


@pytest.mark.long  # what the command says is in the report above; others train on stores
def test_the_next_command_of_one_sentence_documents_trains(tmp_path, capsys):
    text = "".join(f"Line of {number} letters\n" for number in range(400))
    (tmp_path / "a.txt").write_text(text)
    argv = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/s", "--documents=line"]
    argv += [f"--vocab={write_vocabulary(tmp_path / 'pieces.txt')}", "--holdout=0.2"]
    assert main([*argv, "--workers=1"]) == 0
    _, command = capsys.readouterr().out.split(" -m bert_jax.train ")
    few = [f"--config.phases[{phase}].steps=2" for phase in (0, 1)]
    few += ["--config.optim.warmup_steps=1", "--config.phases[1].restart_warmup_steps=1"]
    few += [f"--workdir={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.train", *shlex.split(command), *few],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lowercase", ["true", "false"])
def test_a_build_names_the_vowels_that_lowercasing_strips(tmp_path, lowercase, capsys):
    corpus = tmp_path / "corpus.txt"
    thai = "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49 \u0e2d\u0e32\u0e01\u0e32\u0e28\u0e14\u0e35"
    corpus.write_text("\n\n".join(f"{thai} {i}\n{i} {thai}" for i in range(60)), encoding="utf-8")
    more = ["--train_vocab=wordpiece", "--vocab_size=148", f"--lowercase={lowercase}"]
    assert main(flags(corpus, tmp_path / "store", None, "--holdout=0.2", *more)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("the vocabulary strips these as accents" in shown) == (lowercase == "true")
