"""The build from the command line: the store against plain Python, and all that can go wrong."""

import gzip
import hashlib
import json
import os
import pathlib
import re

import numpy as np
import pytest
import tokenizers

from data_pipeline import build, encoded_chunk
from data_pipeline.build import main
from data_pipeline.examples import open_examples
from data_pipeline.findings import build_findings
from data_pipeline.options import PretrainOptions
from data_pipeline.store import Split, open_store
from data_pipeline.vocab import load_vocabulary, token_dtype
from tests.data_pipeline import wordpiece_oracle

ROOT = pathlib.Path(__file__).parents[2]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
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
    path = tmp_path / "pieces.txt"
    pieces = [*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), ",", ".", "line", "document"]
    path.write_text("\n".join(pieces) + "\n")
    return path


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


def test_the_manifest_says_what_went_in_and_what_came_out(corpus, vocab_path, tmp_path):
    other = tmp_path / "other.jsonl.gz"
    other.write_bytes(gzip.compress(b'{"text": "one\\n\xe2\x80\x8b\\n!"}\n{"text": ""}\n'))
    assert main(flags(f"{corpus},{other}", tmp_path / "store", vocab_path, "--holdout=0.2")) == 0
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    splits = manifest["splits"]
    assert splits["train"]["documents"] + splits["heldout"]["documents"] == 61
    assert manifest["dropped"] == dict.fromkeys(manifest["dropped"], 0) | {
        "sentences_without_tokens": 1,
        "documents_without_sentences": 1,
    }
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


def test_documents_keep_their_side_when_the_corpus_grows(corpus, vocab_path, tmp_path):
    in_letters = str.maketrans("0123456789", "abcdefghij")  # or documents are copies of others
    blocks = corpus_text(300).translate(in_letters).split("\n\n")
    sides = []
    for name, some in (("small", blocks[::7]), ("large", blocks[::-1])):  # all around the old ones
        corpus.write_text("\n\n".join(some))
        assert main(flags(corpus, tmp_path / name, vocab_path, "--holdout=0.2")) == 0
        opened = open_store(tmp_path / name)
        sides.append([texts_of(split) for split in (opened.train, opened.heldout)])
    (old_train, old_heldout), (train, heldout) = sides
    assert old_train <= train and old_heldout <= heldout
    assert len(old_heldout) > 5


def texts_of(split: Split) -> set[bytes]:
    ends = split.sentence_offsets[split.document_offsets]
    return {part.tobytes() for part in np.split(split.token_ids, ends[1:-1])}


def test_the_store_is_the_same_for_any_number_of_processes(
    corpus, vocab_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoded_chunk, "CHUNK_CHARS", 200)  # many chunks of few documents
    for workers in ("1", "3"):
        more = (f"--workers={workers}", "--sentences=split")
        assert main(flags(corpus, tmp_path / workers, vocab_path, *more)) == 0
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


@pytest.mark.parametrize("kind, size", [("wordpiece", 200), ("unigram", 80), ("bpe", 80)])
def test_a_vocabulary_is_trained_and_kept_in_the_store(corpus, tmp_path, kind, size):
    more = (f"--train_vocab={kind}", f"--vocab_size={size}")
    for name in ("one", "two"):
        assert main(flags(corpus, tmp_path / name, None, *more)) == 0
    opened = open_store(tmp_path / "one")
    vocabulary = load_vocabulary(opened.vocab_path)
    expected = "wordpiece" if kind == "wordpiece" else "sentencepiece"
    assert (vocabulary.kind, vocabulary.size) == (expected, size)
    assert vocabulary.special_ids == opened.special_ids
    first = opened.train.token_ids[: opened.train.sentence_offsets[1]]
    assert vocabulary.decode(first).startswith("line 0 of document")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "one" / "tokenizer.json"))
    line = vocabulary.decode(first)
    assert theirs.encode(line, add_special_tokens=False).ids == first.tolist()


def test_a_tokenizer_json_gives_the_store_of_the_list_it_was_made_from(
    corpus, vocab_path, tmp_path
):
    assert main(flags(corpus, tmp_path / "one", vocab_path)) == 0
    assert main(flags(corpus, tmp_path / "two", tmp_path / "one" / "tokenizer.json")) == 0
    one, two = open_store(tmp_path / "one"), open_store(tmp_path / "two")
    assert two.vocab_path.name == "vocab.txt"
    assert one.digest == two.digest


@pytest.mark.parametrize("kind, size", [("wordpiece", 200), ("bpe", 80)])
def test_help_names_the_special_ids_that_a_trained_vocabulary_has(
    corpus, tmp_path, kind, size, capsys
):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        main(
            flags(corpus, tmp_path / "store", None, f"--train_vocab={kind}", f"--vocab_size={size}")
        )
        == 0
    )
    ids = open_store(tmp_path / "store").special_ids
    named = ", ".join(f"[{name.upper()}] {ids[name]}" for name in ids)
    assert f"{kind} ({named})" in shown


def test_large_vocabularies_get_four_byte_ids():
    assert token_dtype(1 << 16) == np.uint16
    assert token_dtype((1 << 16) + 1) == np.uint32


BAD_FLAGS = {
    "no input": (
        ["--output=OUT", "--vocab=VOCAB"],
        "--input is missing; a whole command is: python",
    ),
    "no output": (["--input=CORPUS", "--vocab=VOCAB"], "--output is missing; a whole command is"),
    "no vocabulary": (["--input=CORPUS", "--output=OUT"], "one of --vocab=FILE and --train_vocab"),
    "two": (["--vocab=VOCAB", "--train_vocab=wordpiece", "GOOD"], "both are given"),
    "kind": (
        ["--train_vocab=sentencepiece", "--vocab_size=99", "GOOD"],
        "--train_vocab is 'sentencepiece'; it must be wordpiece, or unigram or bpe for a Sentence",
    ),
    "reserved": (
        ["--train_vocab=bpe", "--vocab_size=99", "--reserved_pieces=-1", "GOOD"],
        "--reserved_pieces is -1; it must be 0 or more",
    ),
    "reserved of a list": (
        ["--vocab=VOCAB", "--reserved_pieces=3", "GOOD"],
        "--reserved_pieces is 3; it must be 0 or more, and 0 with --vocab",
    ),
    "workers": (["--vocab=VOCAB", "--workers=-1", "GOOD"], "--workers is -1; it must be from 1 to"),
    "many workers": (["--vocab=VOCAB", "--workers=99999", "GOOD"], "--workers is 99999; it must"),
    "a threshold alone": (
        ["--vocab=VOCAB", "--near_duplicate_threshold=0.9", "GOOD"],
        "--near_duplicate_threshold is 0.9, but --near_duplicates is keep",
    ),
    "a device": (
        ["--vocab=VOCAB", "--input=CORPUS", "--output=/dev/null/out"],
        "--output is /dev/null/out, which cannot be written here (Not a directory)",
    ),
    "coverage of a list": (
        ["--vocab=VOCAB", "--character_coverage=1", "GOOD"],
        "--character_coverage is 1.0, but the pieces of --vocab=",
    ),
    "coverage": (
        ["--train_vocab=bpe", "--vocab_size=99", "--character_coverage=nan", "GOOD"],
        "--character_coverage is nan; it must be from 0.98 to 1",
    ),
    "no size": (
        ["--train_vocab=wordpiece", "GOOD"],
        "--vocab_size is missing; --train_vocab needs",
    ),
    "size": (
        ["--vocab=VOCAB", "--vocab_size=9", "GOOD"],
        "--vocab_size is 9, but the size of --vo",
    ),
    "typo": (["--vocab=VOCAB", "--lower_case=true", "GOOD"], "did you mean --lowercase?"),
    "stray": (
        ["--vocab=VOCAB", "file.txt", "GOOD"],
        "'file.txt' is not a flag of python -m data_pipeline.build",
    ),
    "boolean": (["--vocab=VOCAB", "--lowercase=yes", "GOOD"], "'yes' is neither true nor false"),
    "number": (
        ["--vocab=VOCAB", "--workers=two", "GOOD"],
        "--workers is 'two'; it must be a whole number",
    ),
    "holdout": (
        ["--vocab=VOCAB", "--holdout=0.9", "GOOD"],
        "--holdout is 0.9; it must be more than",
    ),
    "bucket in": (
        ["--vocab=VOCAB", "--input=CORPUS, memory://none/*.txt", "--output=OUT"],
        "--input has 'memory://none/*.txt', which matches no file; give files or globs",
    ),
    "bucket vocab": (["--vocab=s3://b/vocab.txt", "GOOD"], "--vocab is s3://b/vocab.txt, but this"),
    "rule": (
        ["--vocab=VOCAB", "--documents=page", "GOOD"],
        "--documents is 'page'; it must be one",
    ),
    "no match": (["--vocab=VOCAB", "--input=*.none", "--output=OUT"], "which matches no file"),
    "folder": (["--vocab=VOCAB", "--input=FOLDER", "--output=OUT"], "a directory; give its files"),
    "small": (
        ["--train_vocab=wordpiece", "--vocab_size=110", "GOOD"],
        "--vocab_size is 110, too sm",
    ),
    "large": (["--train_vocab=wordpiece", "--vocab_size=9999", "GOOD"], "yields no more than"),
    "no vocab": (["--vocab=none.txt", "GOOD"], "--vocab is none.txt, which is not a file"),
    "in file": (["--vocab=VOCAB", "--input=CORPUS", "--output=CORPUS/x"], "Not a directory"),
    "is file": (
        ["--vocab=VOCAB", "--input=CORPUS", "--output=CORPUS"],
        "which is a file; give a fo",
    ),
}


@pytest.mark.parametrize("given, sentence", BAD_FLAGS.values(), ids=BAD_FLAGS)
def test_bad_flags_are_one_sentence_and_write_nothing(
    given, sentence, corpus, vocab_path, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    names = {"CORPUS": corpus, "VOCAB": vocab_path, "OUT": tmp_path / "out", "FOLDER": tmp_path}
    argv = []
    for flag in given:
        parts = ["--input=CORPUS", "--output=OUT"] if flag == "GOOD" else [flag]
        for name, value in names.items():
            parts = [part.replace(f"={name}", f"={value}") for part in parts]
        argv += parts
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert re.match(r"error: .*\n$", error)
    assert sentence in error
    assert contents(tmp_path) == before
    assert not (tmp_path / "out").exists()


FAR = (b"a " * 13 + b"aa\n\n") * 40_000  # more than is read at once
BAD_CORPORA = {
    "bad utf-8 far inside": (FAR + b"\xff", "byte 0xff at byte offset 1200000"),
    "nul far inside": (FAR + b"\0", "a NUL byte at byte offset 1200000"),
    "cut gzip": (
        gzip.compress(os.urandom(9999).hex().encode())[:5000],
        "gzip file that ends early",
    ),
    "one document": (b"one\ntwo\n", "the input has a single document"),
    "copies": (b"Page 1\n\npage 2\n\nPAGE  3\n", "the input has 3 documents that all say the same"),
    "no tokens": ("\u200b\n\n\u200b\n".encode(), "the input has no document with a token"),
}


@pytest.mark.parametrize("workers", ["--workers=1", "--workers=2"])
@pytest.mark.parametrize("data, sentence", BAD_CORPORA.values(), ids=BAD_CORPORA)
def test_bad_text_found_half_way_leaves_nothing(
    data, sentence, workers, corpus, vocab_path, tmp_path, capsys
):
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    for output in (tmp_path / "new", tmp_path / "store"):
        if output.name == "store":
            assert main(flags(corpus, output, vocab_path)) == 0
        before = contents(tmp_path)
        assert main(flags(bad, output, vocab_path, workers, "--overwrite=true")) == 2
        assert re.match(rf"error: .*{sentence}.*\n$", capsys.readouterr().err)
        assert contents(tmp_path) == before
        assert output.exists() == (output.name == "store")


def test_a_finished_store_is_replaced_only_when_told_to(corpus, vocab_path, tmp_path, capsys):
    output = tmp_path / "store"
    assert main(flags(corpus, output, vocab_path)) == 0
    before = contents(output)
    corpus.write_text(corpus_text(70))
    assert main(flags(corpus, output, vocab_path)) == 2
    assert "finished store; give another folder, or replace it with --overwrite=true" in (
        capsys.readouterr().err
    )
    assert contents(output) == before
    more = ("--train_vocab=unigram", "--vocab_size=80", "--overwrite=true")
    assert main(flags(corpus, output, None, *more)) == 0
    assert open_store(output).vocab_path.name == "vocab.model"
    assert not (output / "vocab.txt").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_vocabulary_trained_on_text_without_a_capital_is_taken(workers, tmp_path):
    corpus = tmp_path / "low.txt"
    corpus.write_text("".join(f"line {i} has no capital in it\n\n" for i in range(200)))
    more = ["--train_vocab=wordpiece", "--vocab_size=150", "--lowercase=false"]
    workers_flag = f"--workers={workers}"
    assert main(flags(corpus, tmp_path / "store", None, workers_flag, *more)) == 0
    assert open_store(tmp_path / "store").manifest["vocabulary"]["lowercase"] is False


def test_files_without_text_among_others_are_counted_and_named(
    corpus, vocab_path, tmp_path, capsys
):
    for name, data in (
        ("empty", b""),
        ("blank", b" \n\n\t\n"),
        ("nothing.gz", gzip.compress(b"")),
        ("z", b""),
    ):
        (tmp_path / f"no_{name}").write_bytes(data)
    assert main(flags(f"{corpus},{tmp_path}/no_*", tmp_path / "store", vocab_path)) == 0
    manifest = open_store(tmp_path / "store").manifest
    assert manifest["dropped"]["files_without_text"] == 4
    screen = capsys.readouterr().out
    assert f"no text in  {tmp_path}/no_blank, {tmp_path}/no_empty, {tmp_path}/no_not" in screen
    assert main(flags(f"{tmp_path}/no_*", tmp_path / "none", vocab_path)) == 2
    assert "the input has no document with a token" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_other_peoples_folders_are_left_alone(corpus, vocab_path, tmp_path, capsys):
    output = tmp_path / "photos"
    output.mkdir()
    (output / "photo").write_text("x")
    assert main(flags(corpus, output, vocab_path, "--overwrite=true")) == 2
    assert "a folder with files that are not a store" in capsys.readouterr().err
    assert [path.name for path in output.iterdir()] == ["photo"]


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
        f"python -m bert_jax.train --config=configs/tiny.py --config.data.store={tmp_path}/store "
        "--workdir=runs/store\n"
    ) in shown


@pytest.mark.parametrize("documents", [2, 3])
def test_a_store_that_training_refuses_is_a_finding_without_a_next_command(
    documents, corpus, vocab_path, tmp_path, capsys
):
    corpus.write_text("\n\n".join(f"Line of {c}.\nAnother one." for c in "abc"[:documents]))
    assert main(flags(corpus, tmp_path / "store", vocab_path)) == 0
    shown = capsys.readouterr().out
    assert f"1 of {documents} documents is held out and 2 are needed" in shown
    assert "Give 4 or more documents that differ" in shown
    assert "bert_jax.train" not in shown and "\n  next\n" not in shown


def test_copies_but_for_digits_go_to_one_side_and_the_finding_says_so(
    corpus, vocab_path, tmp_path, capsys
):
    customers = [f"Customer {number}.\nOwes {number * 7 % 1000:03d}." for number in range(100, 900)]
    others = [f"Line of {a}{b}.\nAnother one." for a in "abcdefgh" for b in "ijklmnop"]
    corpus.write_text("\n\n".join(customers + others))
    assert main(flags(corpus, tmp_path / "store", vocab_path, "--holdout=0.3")) == 0
    (finding,) = (
        line for line in capsys.readouterr().out.splitlines() if "--holdout asked for" in line
    )
    heldout = open_store(tmp_path / "store").manifest["splits"]["heldout"]["documents"]
    assert 2 <= heldout <= len(others)  # no customer, who are too many for that side
    assert f"{heldout} of 864 documents are held out" in finding
    assert "alike but for case, white space and digits, which go to one side together" in finding


def test_of_four_documents_the_report_s_command_can_train(corpus, vocab_path, tmp_path, capsys):
    corpus.write_text("\n\n".join(f"Line of {c}.\nAnother one." for c in "abcd"))
    assert main(flags(corpus, tmp_path / "store", vocab_path)) == 0
    assert "bert_jax.train" in capsys.readouterr().out
    opened = open_store(tmp_path / "store")
    for split in (opened.train, opened.heldout):
        source = open_examples(opened, split, PretrainOptions(), 16, 3)
        assert source.rows(np.arange(2))["input_ids"].shape == (2, 16)


def test_a_healthy_corpus_has_no_findings(corpus, vocab_path, tmp_path):
    assert main(flags(corpus, tmp_path / "store", vocab_path, "--holdout=0.2")) == 0
    manifest = open_store(tmp_path / "store").manifest
    assert build_findings(manifest) == []
    long = {name: split | {"tokens": 10**6} for name, split in manifest["splits"].items()}
    (finding,) = build_findings(manifest | {"splits": long})
    assert "tokens on average, more than a sequence of 128 holds" in finding
    dropped = manifest["dropped"] | {"documents_without_sentences": 30}
    (finding,) = build_findings(manifest | {"dropped": dropped})
    assert finding.startswith("33% of the documents had no sentence")


@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_place_where_nothing_can_be_written_is_refused_before_training(
    corpus, capsys, monkeypatch
):
    monkeypatch.setattr(build, "train_vocabulary", lambda *given: pytest.fail("trained"))
    more = ("--train_vocab=wordpiece", "--vocab_size=200")
    assert main(flags(corpus, "/proc/out", None, *more)) == 2
    assert "--output is /proc/out, which cannot be written here" in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["blank_line", "file", "chapters"])
def test_a_single_document_is_refused_before_training_without_advice_that_is_in_force(
    corpus, tmp_path, capsys, monkeypatch, rule
):
    monkeypatch.setattr(build, "train_vocabulary", lambda *given: pytest.fail("trained"))
    corpus.write_text("One line.\nAnother one.\n")
    argv = [f"--input={corpus}", f"--output={tmp_path}/store", f"--documents={rule}"]
    assert main([*argv, "--train_vocab=wordpiece", "--vocab_size=200"]) == 2
    error = capsys.readouterr().err
    assert "the input has a single document" in error
    assert ("--documents=blank_line" in error) == (rule != "blank_line")


@pytest.mark.parametrize("coverage", [(), ("--character_coverage=0.99",)])
@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_text_that_is_not_utf_8_is_one_sentence_while_training_too(
    corpus, tmp_path, capsys, kind, coverage
):
    corpus.write_bytes(corpus_text(60).encode() + b"\n\n\xff")
    more = (f"--train_vocab={kind}", "--vocab_size=80", *coverage)
    assert main(flags(corpus, tmp_path / "store", None, *more)) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"error: {corpus} is not UTF-8: byte 0xff at byte offset \d+ .*\n", error)
    assert not (tmp_path / "store").exists()
