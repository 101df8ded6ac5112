"""Every kind of file that a command of the pipeline reads, damaged in every way: one sentence."""

import bz2
import functools
import gzip
import io
import lzma
import os
import pathlib
import random
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from data_pipeline import (
    benchmark,
    build,
    export_tfrecord,
    grow_vocab,
    import_tfrecord,
    inspect,
    python_docs,
)
from data_pipeline.vocab_training import train_vocabulary
from tests.data_pipeline.stores import healthy_store

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "line", "of", ".", *"0123456789"]
TEXT = "".join(f"Line {number} of text.\nLine {number}.\n\n" for number in range(60)).encode()
JSON = b"".join(b'{"text": "Line %d of text."}\n' % number for number in range(60))
NOISE = random.Random(7).randbytes(3000)
DEEP = 100_000


def parquet_bytes() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": [f"Line {number}." for number in range(60)]}), file)
    return file.getvalue()


@functools.cache
def model_bytes() -> bytes:
    texts = [f"line {a} of text {b}" for a in range(30) for b in range(30)]
    return train_vocabulary("bpe", lambda: texts, 80, True).file_bytes


# Text that a build reads, by the name of its file.
INPUTS = {
    "a.txt": TEXT,
    "a.jsonl": JSON,
    "a.parquet": parquet_bytes(),
    "a.txt.gz": gzip.compress(TEXT),
    "a.jsonl.bz2": bz2.compress(JSON),
    "a.txt.xz": lzma.compress(TEXT),
    "a.jsonl.zst": zstandard.compress(JSON),
}
NESTED = {
    "a.jsonl": b"[" * DEEP,
    "b.jsonl": b'{"text":' * DEEP + b"}" * DEEP,
    "c.jsonl": b'{"text": "a", "b": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "tokenizer.json": b'{"model":' * DEEP + b"1" + b"}" * DEEP,
}
WRONG = {
    "a.jsonl": b'[1]\n"x"\n',
    "b.jsonl": b'{"text": {"a": 1}}\n',
    "c.jsonl": b'{"text": ' + b"9" * 5000 + b"}\n",
    "a.parquet": b"PAR1" + TEXT + b"PAR1",
    "a.txt.gz": b"\x1f\x8b\x08" + bytes(40),
    "a.txt": b"PK\x03\x04" + TEXT,
}


def damages(whole: bytes) -> dict[str, bytes]:
    """Bytes that are not the file; each is damage for every kind but text."""
    return {
        "empty": b"",
        "cut": whole[: 2 * len(whole) // 3],
        "noise": NOISE,
        "nuls": bytes(5000),
        "ends in nuls": whole + bytes(4096),
        "head and noise": whole[:12] + NOISE,
    }


def put(path: pathlib.Path, kind: str) -> None:
    """Make something at a path that is no file."""
    if kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("nowhere")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    else:
        os.mkfifo(path)


def refused(capsys, main, argv: list[str], may_pass: bool = False) -> None:
    """Run a command in this process: exit code 2 and one sentence, or 0 where that is right too."""
    capsys.readouterr()
    code = main(argv)
    error = capsys.readouterr().err
    assert code == 2 or (may_pass and code == 0), (code, error)
    if code:
        assert re.fullmatch(r"error: [^\n]{10,}\n", error), error
        assert "Traceback" not in error and len(error) < 1200, error


def built(tmp_path: pathlib.Path, path: pathlib.Path, *more: str) -> list[str]:
    vocab = tmp_path / "good.txt"
    vocab.write_text("\n".join(PIECES) + "\n")
    output = f"--output={tmp_path}/out"
    return [f"--input={path}", output, f"--vocab={vocab}", "--workers=1", *more]


@pytest.mark.parametrize("damage", damages(b""))
@pytest.mark.parametrize("name", INPUTS)
def test_damaged_input_of_a_build_is_one_sentence(tmp_path, capsys, name, damage):
    path = tmp_path / name
    path.write_bytes(damages(INPUTS[name])[damage])
    padded = {("a.txt.gz", "ends in nuls"), ("a.txt.xz", "ends in nuls")}  # as tar does
    may_pass = (name, damage) in {("a.txt", "cut"), *padded}
    refused(capsys, build.main, built(tmp_path, path), may_pass)
    assert (tmp_path / "out").exists() == may_pass


@pytest.mark.parametrize("content", [*NESTED.items(), *WRONG.items()], ids=lambda one: one[0])
def test_nested_input_and_input_of_another_type_are_one_sentence(tmp_path, capsys, content):
    name, data = content
    path = tmp_path / name
    path.write_bytes(data)
    refused(capsys, build.main, built(tmp_path, path))


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to nothing", "link to itself"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.parquet"])
def test_input_that_is_no_file_is_one_sentence_at_once(tmp_path, capsys, name, kind):
    put(tmp_path / name, kind)
    refused(capsys, build.main, built(tmp_path, tmp_path / name))
    grow = [f"--vocab={tmp_path}/good.txt", f"--input={tmp_path / name}"]
    refused(capsys, grow_vocab.main, [*grow, f"--output={tmp_path}/grown.txt"])


@pytest.mark.parametrize("damage", ["folder", "fifo", "link to nothing", *damages(b"")])
@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "vocab.model"])
def test_a_damaged_vocabulary_is_one_sentence(tmp_path, capsys, name, damage):
    text, path = tmp_path / "text.txt", tmp_path / name
    text.write_bytes(TEXT)
    argv = built(tmp_path, text)
    if name == "tokenizer.json" and damage in damages(b""):
        assert build.main([*argv, "--overwrite=true"]) == 0
        shutil.copyfile(tmp_path / "out" / name, path)
        shutil.rmtree(tmp_path / "out")
    whole = {"vocab.txt": "\n".join(PIECES).encode(), "vocab.model": model_bytes()}
    if damage in damages(b""):
        path.write_bytes(damages(whole.get(name) or path.read_bytes())[damage])
    else:
        put(path, damage)
    # A list cut in two may be a list.
    may_pass = (name, damage) == ("vocab.txt", "cut")
    refused(capsys, build.main, [*argv, f"--vocab={path}"], may_pass)
    grow = [f"--vocab={path}", f"--input={text}", f"--output={tmp_path}/grown.txt"]
    refused(capsys, grow_vocab.main, grow, may_pass)
    imported = [f"--input={text}", f"--vocab={path}", f"--output={tmp_path}/imported"]
    refused(capsys, import_tfrecord.main, imported)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
def test_a_nested_vocabulary_is_one_sentence(tmp_path, capsys, name):
    text, path = tmp_path / "text.txt", tmp_path / name
    text.write_bytes(TEXT)
    path.write_bytes(NESTED["tokenizer.json"])
    refused(capsys, build.main, [*built(tmp_path, text), f"--vocab={path}"])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("damage", ["folder", "fifo", "link to nothing", *damages(b"")])
def test_damaged_records_are_one_sentence(tmp_path, capsys, pack, damage):
    path, vocab = tmp_path / "a.tfrecord", tmp_path / "vocab.txt"
    vocab.write_text("\n".join(PIECES) + "\n")
    if damage in damages(b""):
        path.write_bytes(damages(pack(TEXT))[damage])
    else:
        put(path, damage)
    argv = [f"--input={path}", f"--vocab={vocab}", f"--output={tmp_path}/out"]
    refused(capsys, import_tfrecord.main, argv)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return healthy_store(tmp_path_factory.mktemp("bad_files") / "store")


@pytest.mark.parametrize("damage", ["folder", "fifo", "link to nothing", "nested", *damages(b"")])
@pytest.mark.parametrize("name", ["manifest.json", "vocab.txt", "train/token_ids.npy"])
def test_a_damaged_store_is_one_sentence_in_every_command(tmp_path, capsys, store, name, damage):
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    path = copy / name
    whole = path.read_bytes()
    path.unlink()
    if damage == "nested":
        path.write_bytes(b'{"a":' * DEEP)
    elif damage in damages(b""):
        path.write_bytes(damages(whole)[damage])
    else:
        put(path, damage)
    # What follows an array is not read.
    may_pass = (name, damage) == ("train/token_ids.npy", "ends in nuls")
    refused(capsys, inspect.main, [str(copy), "--examples=0", "--seq_len=32"], may_pass)
    exported = [str(copy), f"--output={tmp_path}/out", "--seq_len=32", "--workers=1", "--epochs=1"]
    refused(capsys, export_tfrecord.main, exported, may_pass)
    if not may_pass:
        refused(capsys, inspect.main, [str(copy), "--verify"])
        refused(capsys, benchmark.main, [str(copy), "--secs=0.01", "--seq_len=32"])


COMMANDS = {
    "build": (build.main, ["--input=TEXT", "--output=OUT", "--vocab=VOCAB", "--workers=1"]),
    "grow_vocab": (grow_vocab.main, ["--input=TEXT", "--output=OUT", "--vocab=VOCAB"]),
    "import": (import_tfrecord.main, ["--input=TEXT", "--output=OUT", "--vocab=VOCAB"]),
    "export": (export_tfrecord.main, ["STORE", "--output=OUT", "--workers=1"]),
    "inspect": (inspect.main, ["STORE"]),
    "benchmark": (benchmark.main, ["STORE", "--secs=0.01"]),
    "python_docs": (python_docs.main, []),
}
BAD_FLAGS = {
    "build": [
        *("--holdout=0", "--holdout=-1", "--holdout=nan", "--holdout=inf", "--holdout=x"),
        *("--workers=-1", "--workers=1e3", "--workers=999999", "--min_document_chars=-1"),
        *("--max_word_chars=-1", "--max_word_chars=9999999", "--near_duplicate_threshold=nan"),
        *("--near_duplicate_threshold=0.7", "--vocab_size=5", "--reserved_pieces=1"),
        *("--language=english", "--documents=x", "--sentences=x", "--normalize=x", "--runner=x"),
        *("--character_coverage=1", "--overwrite=1", "--scratch=/tmp", "--beam_options=x"),
        *("--input=", "--output=", "--vocab=", "--vocab=x/y", "--input=/nowhere/*"),
    ],
    "grow_vocab": [
        *("--words=0", "--words=-3", "--words=x", "--min_count=0", "--min_count=nan"),
        *("--words=999999999", "--min_count=99999999999"),
        *("--output=/nowhere/x", "--documents=x", "--keep_unused=x"),
    ],
    "import": [
        "--holdout=0",
        "--holdout=nan",
        "--holdout=0.6",
        "--holdout=x",
        "--heldout_input=/nowhere",
    ],
    "export": [
        *("--seq_len=0", "--seq_len=-1", "--seq_len=x", "--max_predictions_per_seq=0"),
        *("--max_predictions_per_seq=-1", "--epochs=-1", "--shards=0", "--shards=-1"),
        *("--workers=-1", "--compression=x", "--split=x", "--masked_lm_prob=nan"),
        *("--seq_len=3", "--shards=99999999", "--max_predictions_per_seq=99999"),
        *("--epochs=x", "--epochs=1000000000000", "--dupe_factor=0", "--dupe_factor=999999999"),
        *("--short_seq_prob=nan"),
        *("--mask_token_share=inf", "--longest_ngram=0", "--workers=99999", "--random_seed=-1"),
    ],
    "inspect": [
        *("--seq_len=0", "--seq_len=-5", "--seq_len=x", "--examples=-1", "--html=/nowhere/x"),
        *("--json_out=/", "--html=/", "--seq_len=99999999", "--examples=99999999"),
    ],
    "python_docs": ["--output=x", "/"],
    "benchmark": [
        *("--seq_len=0", "--seq_len=-1", "--batch_size=0", "--batch_size=-2", "--secs=0"),
        *("--secs=-1", "--secs=nan", "--secs=inf", "--max_predictions_per_seq=-1", "--segments=x"),
        *("--masking=x", "--packed_examples=0", "--packed_examples=-1", "--group_sequences=0"),
        *("--cores=-1", "--cores=9999", "--json_out=/nowhere/x", "--json_out=/"),
        *("--batch_size=999999999", "--group_sequences=999999999", "--seq_len=99999999"),
        *("--secs=x", "--secs=1e9"),
    ],
}


@pytest.mark.parametrize(
    "command, flag", [(name, flag) for name, flags in BAD_FLAGS.items() for flag in flags]
)
def test_a_bad_value_of_every_flag_is_one_sentence(tmp_path, capsys, store, command, flag):
    main, argv = COMMANDS[command]
    (tmp_path / "text.txt").write_bytes(TEXT)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    places = {"TEXT": "text.txt", "VOCAB": "vocab.txt", "OUT": "out"}
    for place, name in places.items():
        argv = [one.replace(f"={place}", f"={tmp_path}/{name}") for one in argv]
    argv = [str(store) if one == "STORE" else one for one in argv]
    refused(capsys, main, [*argv, flag])
    assert not (tmp_path / "out").exists()
