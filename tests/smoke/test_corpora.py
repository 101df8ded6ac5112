"""Corpora of every kind go through the pipeline's commands: build, inspect, benchmark, export."""

import gzip
import itertools
import json
import pathlib
from collections.abc import Sequence

import pytest

from data_pipeline import benchmark, build, export_tfrecord, inspect
from data_pipeline.store import open_store
from tests.data_pipeline.multilingual import sentences

pytestmark = pytest.mark.slow

Written = list[str]  # flags of the build beside --output
WORDPIECE = ["--train_vocab=wordpiece"]


def books(shared: pathlib.Path, folder: pathlib.Path) -> Written:
    texts = shared / "pretrain" / "gutenberg"
    given = f"--input={texts}/Alice*,{texts}/The-Time-Machine*"
    return [given, "--documents=gutenberg", *WORDPIECE, "--vocab_size=2000", "--holdout=0.1"]


def articles(shared: pathlib.Path, folder: pathlib.Path) -> Written:
    files = shared / "pretrain" / "enwiki_wikiextractor" / "wikitasks_AA_wiki_09.gz"
    vocab = shared / "vocab" / "bert-base-uncased" / "vocab.txt"
    return [f"--input={files}", f"--vocab={vocab}", "--min_document_chars=1000"]


def documents_of_ten(lines: Sequence[str], path: pathlib.Path) -> Written:
    """Write documents of ten sentences, one a line; return the flags that read them."""
    documents = ("\n".join(lines[start : start + 10]) for start in range(0, len(lines), 10))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return [f"--input={path}", "--sentences=lines", "--holdout=0.1"]


def german(shared: pathlib.Path, folder: pathlib.Path) -> Written:
    given = documents_of_ten(sentences(shared, "de"), folder / "de.txt")
    return [*given, *WORDPIECE, "--vocab_size=2000", "--lowercase=false", "--language=de"]


def chinese(shared: pathlib.Path, folder: pathlib.Path) -> Written:
    given = documents_of_ten(sentences(shared, "zh"), folder / "zh.txt")
    return [*given, "--train_vocab=unigram", "--vocab_size=2500"]


def purchases(shared: pathlib.Path, folder: pathlib.Path) -> Written:
    """No language: a customer is a document, a purchase a sentence of three words."""
    text, last = [], ""
    with gzip.open(shared / "sequences" / "CDNOW_master.txt.gz", "rt") as lines:
        next(lines)
        for line in itertools.islice(lines, 6_000):
            customer, date, number, dollars = line.split()
            if customer != last and last:
                text.append("")
            last = customer
            text.append(f"month{date[4:6]} cds{number} dollars{int(float(dollars)) // 5 * 5}")
    path = folder / "purchases.txt"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return [f"--input={path}", "--sentences=lines", *WORDPIECE, "--vocab_size=250", "--holdout=0.1"]


@pytest.mark.parametrize(
    "corpus",
    [
        books,
        chinese,
        *(pytest.param(c, marks=pytest.mark.long) for c in (articles, german, purchases)),
    ],
)
def test_a_corpus_goes_through_every_command(shared_data, tmp_path, capsys, corpus):
    store, out = tmp_path / "store", tmp_path / "out.json"
    given = corpus(shared_data, tmp_path)
    assert build.main([*given, f"--output={store}", "--workers=1"]) == 0, capsys.readouterr().err
    opened = open_store(store)
    assert opened.train.documents > 20 and opened.heldout.documents > 1
    assert opened.manifest["unknown_token_share"] < 0.03
    quick = [f"--store={store}", "--seq_len=64"]
    flags = ["--verify", "--examples=2", f"--html={tmp_path / 'page.html'}"]
    assert inspect.main([*quick, *flags]) == 0
    assert (tmp_path / "page.html").stat().st_size > 20_000
    flags = ["--secs=0.1", "--cores=1", "--group_sequences=256", f"--json_out={out}"]
    assert benchmark.main([*quick, *flags]) == 0
    assert json.loads(out.read_text())["sequences_per_sec"] > 100
    assert export_tfrecord.main([*quick, f"--output={tmp_path / 'records'}", "--workers=1"]) == 0
    assert list((tmp_path / "records").glob("*.tfrecord*"))
