"""Cleaning rules that look at one document, and what the build says of them."""

import collections
import json
import unicodedata

import pytest

from data_pipeline.build import main
from data_pipeline.read.cleaning import CleaningOptions, Dropped, clean_documents
from data_pipeline.store import open_store

DOCUMENTS = [["Ｆｕｌｌ ﬁle", "e\u0301 and é"], ["plain"], ["long " + "x" * 21, "x" * 20], []]


@pytest.mark.parametrize("form, changed", [("none", 0), ("nfc", 1), ("nfkc", 1)])
def test_the_normal_form_is_unicodes_and_counted(form, changed):
    counts: collections.Counter[str] = collections.Counter()
    found = clean_documents(DOCUMENTS, CleaningOptions(normalize=form), counts)
    assert counts["normalized_documents"] == changed
    if form == "none":
        assert found == DOCUMENTS
    else:
        assert found == [[unicodedata.normalize(form.upper(), t) for t in d] for d in DOCUMENTS]


def test_lines_with_long_words_go_before_documents_are_measured():
    counts: collections.Counter[str] = collections.Counter()
    options = CleaningOptions(max_word_chars=20, min_document_chars=20)
    assert clean_documents(DOCUMENTS, options, counts) == [["x" * 20]]
    assert counts == {"lines_with_long_words": 1, "short_documents": 3}
    assert clean_documents(DOCUMENTS, CleaningOptions(), counts) is DOCUMENTS


def test_the_report_and_the_manifest_say_what_was_cleaned(tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    texts = ["\n".join(lines) for lines in DOCUMENTS] + [f"text no. {c}" for c in "abcde"] * 2
    corpus.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    argv = [f"--input={corpus}", f"--output={tmp_path / 'store'}", "--workers=1"]
    argv += ["--train_vocab=wordpiece", "--vocab_size=138", "--sentences=lines", "--holdout=0.5"]
    argv += ["--normalize=nfkc", "--min_document_chars=6", "--max_word_chars=20"]
    assert main([*argv, "--drop_duplicate_documents=true", "--drop_duplicate_lines=true"]) == 0
    assert "1 documents were not in nfkc" in capsys.readouterr().out
    store = open_store(tmp_path / "store")
    cleaned = {"lines_with_long_words": 1, "short_documents": 2, "duplicate_documents": 5}
    assert store.manifest["dropped"] == dict.fromkeys(Dropped, 0) | cleaned
    assert store.manifest["changed"]["normalized_documents"] == 1
    assert store.manifest["build"]["max_word_chars"] == 20
    assert "ｆ" not in store.vocab_path.read_text()  # trained on what is stored
