"""Damaged files and bad flags of the pipeline's commands: one sentence, exit code 2, no output."""

import bz2
import functools
import gzip
import io
import lzma
import random
import re
import shutil
import sys

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
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.tokenizer_json import make_tokenizer_json
from data_pipeline.vocab.train import train_vocabulary
from tests.damages import fifo, folder, link_to_itself
from tests.data_pipeline.stores import healthy_store

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "line", "of", ".", *"0123456789"]
LIST = "".join(piece + "\n" for piece in PIECES).encode()
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
NESTED = b'{"model":' * DEEP + b"1" + b"}" * DEEP
# What makes bytes that are not the file; each is damage for every kind but text.
DAMAGES = {
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[: 2 * len(whole) // 3],
    "noise": lambda whole: NOISE,
    "nuls": lambda whole: bytes(5000),
    "ends in nuls": lambda whole: whole + bytes(4096),
    "head and noise": lambda whole: whole[:12] + NOISE,
}


@pytest.fixture
def refused(tmp_path, capsys, request):
    """Run a command in this process: exit code 2 and one sentence, or 0 where that is right too."""
    places = {
        "VOCAB": tmp_path / "good.txt",
        "TEXT": tmp_path / "text.txt",
        "OUT": tmp_path / "out",
        "FOLDER": tmp_path,
        "STORE": request.getfixturevalue("store"),
    }
    places["VOCAB"].write_bytes(LIST)
    places["TEXT"].write_bytes(TEXT)

    def run(main, argv: list[str], words: str = "", may_pass: bool = False) -> None:
        for name, path in places.items():
            argv = [word.replace(f"={name}", f"={path}") for word in argv]
        code = main(argv)
        error = capsys.readouterr().err
        assert code == 2 or (may_pass and code == 0), (code, error)
        if code:
            assert re.fullmatch(r"error: [^\n]{10,}\n", error), error
            assert "Traceback" not in error and len(error) < 1200, error
            assert words in error
        assert (tmp_path / "out").exists() == (code == 0)

    return run


BUILD = ["--output=OUT", "--vocab=VOCAB", "--workers=1"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", INPUTS)
def test_damaged_input_of_a_build_is_one_sentence(tmp_path, refused, name, damage):
    path = tmp_path / name
    path.write_bytes(DAMAGES[damage](INPUTS[name]))
    padded = {("a.txt.gz", "ends in nuls"), ("a.txt.xz", "ends in nuls")}  # tar pads files so
    may_pass = (name, damage) in {("a.txt", "cut"), *padded}
    refused(build.main, [*BUILD, f"--input={path}"], may_pass=may_pass)


@pytest.mark.parametrize("put", [folder, fifo, link_to_itself])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.parquet"])
def test_what_is_no_file_is_one_sentence_at_once(tmp_path, refused, name, put):
    path = tmp_path / name
    path.touch()
    put(path)
    for main in (build.main, grow_vocab.main, import_tfrecord.main):
        refused(main, ["--output=OUT", "--vocab=VOCAB", f"--input={path}"])
        refused(main, ["--output=OUT", f"--vocab={path}", "--input=TEXT"])


@pytest.mark.parametrize("damage", [*DAMAGES, "nested"])
@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "vocab.model"])
def test_a_damaged_vocabulary_is_one_sentence(tmp_path, refused, name, damage):
    path = tmp_path / name
    whole = {"vocab.txt": LIST, "vocab.model": model_bytes()}.get(name)
    if whole is None:
        whole = make_tokenizer_json(load_vocabulary(tmp_path / "good.txt")).encode()
    path.write_bytes(NESTED if damage == "nested" else DAMAGES[damage](whole))
    may_pass = (name, damage) == ("vocab.txt", "cut")  # a list cut in two may be a list
    refused(build.main, [*BUILD, "--input=TEXT", f"--vocab={path}"], may_pass=may_pass)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return healthy_store(tmp_path_factory.mktemp("bad_files") / "store")


@pytest.mark.parametrize("name", ["manifest.json", "vocab.txt", "train/token_ids.npy"])
def test_a_damaged_store_is_one_sentence_in_every_command(tmp_path, refused, store, name):
    """Every kind of damage is in store/test_damaged_store.py."""
    copy = shutil.copytree(store, tmp_path / "store")
    (copy / name).write_bytes(DAMAGES["cut"]((copy / name).read_bytes()))
    refused(inspect.main, [f"--store={copy}", "--examples=0", "--seq_len=32"])
    refused(inspect.main, [f"--store={copy}", "--verify"])
    refused(export_tfrecord.main, [f"--store={copy}", "--output=OUT", "--workers=1"])
    refused(benchmark.main, [f"--store={copy}", "--secs=0.01", "--seq_len=32"])


COMMANDS = {
    "build": (build.main, ["--input=TEXT", "--output=OUT"]),
    "grow_vocab": (grow_vocab.main, ["--input=TEXT", "--output=OUT", "--vocab=VOCAB"]),
    "import": (import_tfrecord.main, ["--input=TEXT", "--output=OUT", "--vocab=VOCAB"]),
    "export": (export_tfrecord.main, ["--store=STORE", "--output=OUT", "--workers=1"]),
    "inspect": (inspect.main, ["--store=STORE"]),
    "benchmark": (benchmark.main, ["--store=STORE", "--secs=0.01"]),
    "python_docs": (python_docs.main, []),
}
TRAIN = "--train_vocab=bpe --vocab_size=99"
BUCKET = f"{TRAIN} --output=memory://bucket/x"
ONE_DEVICE = "this process may use 1 to" if sys.platform == "linux" else "only Linux can"
# Flags beside those above, and a part of the sentence that refuses them.
REFUSALS = {
    "build": {
        "--vocab=VOCAB --input=": "--input is missing",
        "--vocab=VOCAB --output=": "--output is missing",
        "--compare_vocabs=VOCAB": "--output is ",
        "--output= --compare_vocabs=VOCAB --workers=2": "--workers is 2, but --compare_vocabs",
        "--output= --compare_vocabs=gs://a/b.txt": "--compare_vocabs is gs://a/b.txt, but must",
        "--output= --compare_vocabs=VOCAB,,VOCAB": "VOCAB, with nothing before or after a comma",
        "--output= --compare_vocabs=VOCAB,/no/vocab.txt": "--compare_vocabs has /no/vocab.txt",
        "": "one of --vocab=FILE and --train_vocab",
        "--vocab=VOCAB --train_vocab=wordpiece": "both are given",
        "--train_vocab=sentencepiece --vocab_size=99": "--train_vocab is 'sentencepiece'",
        "--train_vocab=wordpiece": "--vocab_size is missing",
        # A larger one could not be read back.
        "--train_vocab=wordpiece --vocab_size=4194305": "it must be from 0 to 4194304",
        "--train_vocab=byte_bpe --lowercase=false --vocab_size=838861": "takes at most 838860",
        "--vocab=VOCAB --vocab_size=9": "--vocab_size is 9, but the pieces of --vo",
        f"{TRAIN} --reserved_pieces=100": "--reserved_pieces is 100",
        "--vocab=VOCAB --reserved_pieces=3": "--reserved_pieces is 3, but the pieces of --vocab=",
        "--vocab=VOCAB --character_coverage=1": "--character_coverage is 1.0, but the pieces",
        "--vocab=VOCAB --scratch=/tmp": "--scratch is /tmp, but --output=",
        "--vocab=VOCAB --near_duplicate_threshold=0.9": "0.9, but --near_duplicates is keep",
        "--vocab=VOCAB --lower_case=true": "did you mean --lowercase?",
        "--vocab=s3://b/vocab.txt": "--vocab is s3://b/vocab.txt, but must",
        f"{TRAIN} --output=/dev/null/out": "but /dev/null is a file",
        f"{TRAIN} --output=memory://bucket": "names no folder in a bucket",
        f"{TRAIN} --output=memory://": "memory:// names no bucket; give one",
        f"{TRAIN} --output=nosuch://a/b": "not a file system that fsspec knows",
        f"{BUCKET} --scratch=/nowhere/at/all": "--scratch is /nowhere/at/all, where no folder can",
        f"{BUCKET} --scratch=gs://a/b": "--scratch is gs://a/b, but must be a local",
        f"{TRAIN} --sentencepiece_rules=albert": "is albert, but --train_vo",
        "--vocab=VOCAB --output=TEXT": "which is a file",
    },
    "grow_vocab": {
        "--min_count=50000": "cuts none into pieces",
        "--vocab=": "--vocab is missing",
        "--output=gs://bucket/vocab.txt": "--output is gs://bucket/vocab.txt",
        "--output=/no/folder/vocab.txt": "there is no folder /no/folder",
        "--output=/etc/hostname": "which already exists",
        "--output=grown.json": "names another kind of vocabulary",
    },
    "export": {
        "--packed_examples=2": "--packed_examples",
        "--compression=zip": "--compression is 'zip'; it must be one of none, gzip",
        "--shards=10000": "examples; give no more files",
        "--shards=0": "--shards is 0",
        "--seq_len=4": "seq_len is 4",
        "--output=FOLDER": "a folder with other files",
    },
    "python_docs": {
        "": "OUTPUT.jsonl is missing",
        "gs://bucket/docs.jsonl": "OUTPUT.jsonl is gs://bucket/docs.jsonl, but must be a local",
    },
    "inspect": {
        "--store=FOLDER/absent": "/absent is not a store",
        "--store=gs://bucket/store --verify": "the store is gs:/bucket/store",
        "--html=FOLDER/no/x": "/no/x, but there is no folder ",
        "--html=FOLDER": "which is a folder",
        "--json_out=FOLDER": "which is a folder",
        "--html=FOLDER/x --json_out=FOLDER/./x": "--html and --json_out are both",
        "--seq_len=4": "--seq_len is 4",
    },
    "benchmark": {
        "--cores=9999": f"--cores is 9999; {ONE_DEVICE}",
        "--seq_len=3": "seq_len is 3",
        "--seq_len=32 --packed_examples=64": "packed_examples is 64; a row of 32 tok",
        "--store=FOLDER/absent": "is not a store",
    },
}


@pytest.mark.parametrize(
    ("command", "flags"), [(command, flags) for command in REFUSALS for flags in REFUSALS[command]]
)
def test_a_mistake_is_one_sentence_before_any_work(monkeypatch, refused, command, flags):
    monkeypatch.setattr(build, "train_vocabulary", lambda *given: pytest.fail("trained"))
    monkeypatch.setattr(inspect, "measure", None)
    main, argv = COMMANDS[command]
    refused(main, [*argv, *flags.split()], REFUSALS[command][flags])


# More numbers of a flag that are out of its range, and places that are none.
BAD_VALUES = {
    "build": [
        *("--holdout=0", "--holdout=inf", "--workers=999999", "--max_word_chars=9999999"),
        *("--runner=x", "--beam_options=x", "--language=english", "--input=/nowhere/*"),
        "--vocab=x/y",
    ],
    "grow_vocab": ["--words=999999999", "--min_count=99999999999"],
    "import": ["--holdout=0", "--holdout=0.6", "--heldout_input=/nowhere"],
    "export": [
        *("--seq_len=0", "--shards=99999999", "--workers=99999", "--split=x"),
        *("--max_predictions_per_seq=0", "--max_predictions_per_seq=99999"),
        *("--epochs=1000000000000", "--dupe_factor=999999999"),
    ],
    "inspect": ["--seq_len=0", "--seq_len=99999999", "--examples=99999999", "--json_out=/"],
    "python_docs": ["--output=x"],
    "benchmark": [
        *("--seq_len=0", "--batch_size=0", "--secs=0", "--secs=inf", "--json_out=/nowhere/x"),
        *("--batch_size=999999999", "--group_sequences=999999999", "--seq_len=99999999"),
    ],
}
# What no flag takes whose value --help gives this name; a boolean has BOOL or no name.
NEVER = {"N": ("x", "-1"), "X": ("x", "-1", "nan"), "BOOL": ("2", "x"), "": ("2", "x")}
CHOICES = {"documents", "sentences", "normalize", "near_duplicates", "segments", "masking"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_value_of_every_flag_is_one_sentence(capsys, refused, command):
    main, argv = COMMANDS[command]
    argv = [*argv, "--vocab=VOCAB"] if command == "build" else argv
    assert main(["--help"]) == 0
    flags = re.findall(r"^  --(\w+)=?(\S*)", capsys.readouterr().out, re.MULTILINE)
    values = {name: ("x",) if name in CHOICES else NEVER.get(kind, ()) for name, kind in flags}
    bad = [f"--{name}={value}" for name in values for value in values[name]]
    assert (len(bad) >= 4) == (command != "python_docs")
    for flag in [*bad, *BAD_VALUES[command]]:
        refused(main, [*argv, flag], flag.removeprefix("--").partition("=")[0])
