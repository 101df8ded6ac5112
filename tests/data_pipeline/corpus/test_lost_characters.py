"""Characters that a vocabulary lacks: counted as plain Python counts them, and shown safely."""

import json

import pytest

from data_pipeline.build import main
from data_pipeline.corpus import encode
from data_pipeline.corpus.lost_characters import (
    LostCharacters,
    describe_lost_characters,
    record_lost_characters,
)
from data_pipeline.report.findings import find_in_build
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.train import train_vocabulary
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer
from tests.data_pipeline.encoded import SPECIALS, write_list

LETTERS = "abcdefghij"
TEXT = [f"{a}{b} {b}{c}{a}" for a in LETTERS for b in LETTERS for c in LETTERS]


@pytest.mark.parametrize(
    "kind, name, size",
    [("wordpiece", "vocab.txt", 150), ("unigram", "vocab.model", 100), ("bpe", "vocab.model", 110)],
)
def test_what_no_piece_has_is_counted_by_its_code_point(tmp_path, kind, name, size):
    path = tmp_path / name
    path.write_bytes(train_vocabulary(kind, lambda: TEXT, size, True).file_bytes)
    lost = LostCharacters(load_vocabulary(path)).count(
        ["ab\u2019c \u2019", "\u00a0aB\u0414 \u0434", "cab", "\U0001f600", "a\u2581b"]
    )
    expected = {0x2019: 2, 0x0434: 2, 0x1F600: 1}  # \u0414 is \u0434 in lower case
    assert lost == expected | ({0x2581: 1} if kind == "wordpiece" else {})  # others: a space


def test_a_store_records_what_its_text_lost(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(encode, "CHUNK_CHARS", 1000)
    corpus = tmp_path / "corpus.txt"
    lines = [f"Line {i} isn\u2019t of \u202e document {i % 7}." for i in range(300)]
    corpus.write_text("\n\n".join([*lines, "a \u0627 \u2019"]))
    pieces = [*LETTERS, *"0123456789", *("##" + digit for digit in "0123456789")]
    pieces += [".", "line", "isn", "t", "of", "document"]
    vocab = write_list(tmp_path / "pieces.txt", pieces)
    argv = [f"--input={corpus}", f"--output={tmp_path}/store", f"--vocab={vocab}"]
    assert main([*argv, "--workers=1", "--sentences=lines"]) == 0
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert manifest["lost_characters"] == {
        "characters": 2,
        "occurrences": 302,
        "most_frequent": {"U+2019": 301, "U+0627": 1},
    }
    assert manifest["build"]["character_coverage"] is None
    screen = capsys.readouterr().out
    assert "2 unknown, 302 times: \u2019 (U+2019) 301, (U+0627) 1" in screen
    assert "\u0627" not in screen


@pytest.mark.parametrize("code", [0x1B, 0x202E, 0x0301, 0xE000, 0x05D0, 0xD800, 0x10FFFF])
def test_characters_that_could_steer_a_terminal_are_named_alone(code):
    words = describe_lost_characters({"lost_characters": record_lost_characters({code: 5})})
    assert words == f"1 unknown, 5 times: (U+{code:04X}) 5"
    assert words.isprintable()


def test_the_most_frequent_come_first_and_a_record_that_was_changed_by_hand_is_refused():
    counts = dict(zip(range(0x4E00, 0x4E00 + 500), range(500), strict=True))
    record = record_lost_characters(counts)
    assert (record["characters"], record["occurrences"]) == (500, 499 * 250)
    assert list(record["most_frequent"])[:2] == ["U+4FF3", "U+4FF2"]
    assert len(record["most_frequent"]) == 100
    assert describe_lost_characters({"lost_characters": record_lost_characters({})}) == ""
    with pytest.raises(ValueError, match="lost_characters"):
        describe_lost_characters({"lost_characters": {"characters": 1, "most_frequent": {"x": 2}}})


@pytest.mark.parametrize(
    "coverage, occurrences, is_named", [(0.9995, 9, 1), (1.0, 9, 0), (0.9995, 1, 0), (None, 9, 0)]
)
def test_a_finding_names_the_flag_where_it_helps(coverage, occurrences, is_named):
    split = {"documents": 200, "sentences": 400, "tokens": 4000, "one_sentence_documents": 0}
    manifest = {
        "splits": {"train": split, "heldout": split},
        "unknown_token_share": 0.0,
        "dropped": {"documents_without_sentences": 0},
        "holdout": 0.5,
        "lost_characters": {"characters": 1, "occurrences": occurrences},
        "counted": {"characters": 0, "long_word_characters": 0},
        "build": {"character_coverage": coverage},
    }
    found = list(find_in_build(manifest))
    assert len(found) == is_named
    assert all("--character_coverage=1" in finding for finding in found)


def test_words_longer_than_the_file_takes_are_counted(tmp_path):
    """A list has Google's 200 characters, a tokenizer.json its own number."""
    listed = write_list(tmp_path / "vocab.txt", ["a", "##a"])
    library = make_wordpiece_tokenizer([*SPECIALS, "a", "##a"], "[UNK]", lowercase=True)
    model = json.loads(library.to_str())
    model["model"]["max_input_chars_per_word"] = 7
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(model))
    sentences = ["a " + "a" * 7 + " " + "a" * 8, "a" * 201]
    model["model"]["max_input_chars_per_word"] = 2**32
    unlimited = tmp_path / "unlimited" / "tokenizer.json"
    unlimited.parent.mkdir()
    unlimited.write_text(json.dumps(model))
    for path, lost in ((listed, 201), (file, 8 + 201), (unlimited, 0)):
        assert LostCharacters(load_vocabulary(path)).count_long_words(sentences) == lost


def test_the_count_of_long_words_does_not_depend_on_the_chunks(tmp_path):
    lost = LostCharacters(load_vocabulary(write_list(tmp_path / "vocab.txt", ["a", "##a"])))
    run = "a" * 201 + "\u0301" + "!" * 301  # 503 characters of which 201 in 502 are lost: 201.4
    assert lost.count_long_words([run] * 5) == 5 * lost.count_long_words([run]) == 5 * 201
