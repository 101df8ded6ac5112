"""Damaged files of tasks: one sentence, whatever the damage, the format and whoever reads it."""

import os
import pathlib
import random
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax import score
from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks import files, multiple_choice, table_pieces
from bert_jax.tasks.ner import data as ner_files
from bert_jax.tasks.ner.predict import TagPredictor
from bert_jax.tasks.predict_table import TablePredictor
from bert_jax.tasks.predicting import PredictRequest
from bert_jax.tasks.squad import data as squad_files
from bert_jax.tasks.squad import metrics
from bert_jax.tasks.squad.predict import AnswerPredictor
from bert_jax.tasks.task import CHOOSE, CLASSIFY, SPAN, TAG
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.vocab.template import make_bert_template

MAX_SENTENCE = 700
NOISE = random.Random(7).randbytes(4096)

SQUAD = (
    '{"data": [{"paragraphs": [{"context": "A cat sat.", "qas": [{"id": "q", "question": "Who?", '
    '"answers": [{"text": "cat", "answer_start": 2}]}]}]}]}'
)


def parquet(**columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


# A file that is as it should be, of each format.
WHOLE = {
    "tsv": b"text\tlabel\na cat\tno\nthe dog\tyes\n",
    "csv": b'text,label\n"a cat, here",no\nthe dog,yes\n',
    "jsonl": b'{"text": "a cat", "label": "no"}\n{"text": "the dog", "label": "yes"}\n',
    "parquet": parquet(text=["a cat", "the dog"], label=["no", "yes"]),
    "conll": b"EU B-ORG\nrejects O\n\nPeter B-PER\nBlackburn I-PER\n",
    "scored": b"EU B-ORG B-ORG\nrejects O O\n",
    "squad": SQUAD.encode(),
    "answers": b'{"q": "cat"}',
    "swag": b"sent1,sent2,ending0,ending1,ending2,ending3,label\nA.,B,c,d,e,f,0\n",
    "codah": b"i\tA cat.\tb\tc\td\te\t0\n",
    "choices": b",pred,label\n0,1,1\n1,2,0\n",
}
# None where a format has nothing of the kind.
HEADERS = {
    "tsv": b"text\tlabel\n",
    "csv": b"text,label\n",
    "swag": b"sent1,sent2,ending0,ending1,ending2,ending3,label\n",
    "choices": b",pred,label\n",
    "parquet": parquet(text=pa.array([], pa.string()), label=pa.array([], pa.string())),
    "squad": b'{"data": []}',
    "conll": b"-DOCSTART- O\n\n",
    "scored": b"\n\n",
}
# In the place of a text: a list, a number, nothing.
WRONG_TYPES = {
    "jsonl": b'{"text": ["a"], "label": "no"}\n',
    "parquet": parquet(text=[["a"]], label=["no"]),
    "squad": b'{"data": [{"paragraphs": [{"context": 7, "qas": []}]}]}',
    "answers": b'{"q": ["cat"]}',
    "swag": b"sent1,sent2,ending0,ending1,ending2,ending3,label\nA.,B,c,d,e,f,none\n",
    "codah": b"i\tA cat.\tb\tc\td\te\tx\n",
    "choices": b",pred,label\n0,one,1\n",
    "conll": b"EU ORG\n",
    "scored": b"EU B-ORG ORG\n",
}
DEEP = {
    "jsonl": b'{"text": ' + b"[" * 100_000 + b"\n",
    "squad": b'{"data": ' + b"[" * 100_000,
    "answers": b'{"q": ' + b'{"a":' * 100_000,
}
DAMAGE = {
    "empty": lambda name, whole: b"",
    "header only": lambda name, whole: HEADERS.get(name),
    "cut": lambda name, whole: whole[: len(whole) // 2],
    "random": lambda name, whole: NOISE,
    "nul": lambda name, whole: b"\0" * 4096,
    "utf-16": lambda name, whole: "text,label\n".encode("utf-16") * 20,
    "wrong type": lambda name, whole: WRONG_TYPES.get(name),
    "deep": lambda name, whole: DEEP.get(name),
    "a long line": lambda name, whole: whole.rstrip(b'\n}]"') + b"x" * (1 << 20),
    "a pipe": lambda name, whole: whole,
}
# What is no damage to the reader: half a file of lines may be a shorter file, and any bytes but
# line feeds are a word or a text.
HARMLESS = {
    ("tsv", "cut"),
    ("jsonl", "a long line"),
    ("conll", "utf-16"),
    *((name, "cut") for name in ("conll", "codah", "scored")),
}
# What predicting does not read: answers and tags.
UNREAD = {(name, "wrong type", 1) for name in ("conll", "swag", "codah")}


def asked(path, kind, **options):
    options = TaskOptions(max_seq_length=128, **options)
    layer = TaskLayer("Mine", kind, ("no", "yes"), options=options)
    output = path.with_name(f"output.{ENDINGS_OF_OUTPUTS[kind]}")
    vocabulary = types.SimpleNamespace(template=make_bert_template({"cls": 1, "sep": 2}))
    return PredictRequest(path, output, layer, vocabulary)


ENDINGS_OF_OUTPUTS = {CLASSIFY: "tsv", CHOOSE: "tsv", TAG: "txt", SPAN: "json"}


def squad_of(path):
    data = path.with_name("data.json")
    data.write_text(SQUAD)
    metrics.score_file(data, path, None, 1.0)


def predictor(kind_of_reader, kind, **options):
    """Return a reader of files that are predicted."""

    def read(path):
        return kind_of_reader(asked(path, kind, **options), lambda count: None)

    return read


READERS = {
    "tsv": [
        lambda path: files.read_columns(path, ["text", "label"]),
        predictor(TablePredictor, CLASSIFY, task="table", text_column="text"),
    ],
    **{
        suffix: [
            lambda path: files.read_columns(path, ["text", "label"]),
            lambda path: table_pieces.open_table(path, ["text"]),
        ]
        for suffix in ("csv", "jsonl", "parquet")
    },
    "conll": [ner_files.read, predictor(TagPredictor, TAG)],
    "scored": [score.read_score],
    "squad": [squad_files.read_squad, predictor(AnswerPredictor, SPAN)],
    "answers": [squad_of],
    "swag": [multiple_choice.read_swag, predictor(TablePredictor, CHOOSE, task="swag")],
    "codah": [multiple_choice.read_codah, predictor(TablePredictor, CHOOSE, task="codah")],
    "choices": [multiple_choice.read_accuracy],
}
ENDINGS = {"conll": "conll", "scored": "conll", "squad": "json", "answers": "json"}
ENDINGS |= {"swag": "csv", "choices": "csv", "codah": "tsv"}
CASES = [
    pytest.param(name, damage, number, id=f"{name}-{damage}-{number}")
    for name, readers in READERS.items()
    for damage in DAMAGE
    for number in range(len(readers))
    if DAMAGE[damage](name, WHOLE[name]) is not None
    and (name, damage) not in HARMLESS
    and (name, damage, number) not in UNREAD
]


def place_of(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / f"input.{ENDINGS.get(name, name)}"


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_is_read(tmp_path, name):
    path = place_of(tmp_path, name)
    path.write_bytes(WHOLE[name])
    for read in READERS[name]:
        read(path)


@pytest.mark.parametrize(("name", "damage", "number"), CASES)
def test_damage_is_one_sentence(tmp_path, monkeypatch, name, damage, number):
    data = DAMAGE[damage](name, WHOLE[name])
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 18)
    path = place_of(tmp_path, name)
    if damage == "a pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(data)
    with pytest.raises(ValueError) as refused:
        READERS[name][number](path)
    said = str(refused.value)
    assert path.name in said and "\n" not in said and len(said) < MAX_SENTENCE, said
    assert said.isprintable(), said
