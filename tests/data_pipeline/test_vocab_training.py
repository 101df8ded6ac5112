"""Trained vocabularies: BERT's layout, the size asked for, the same bytes in every run."""

import collections
import hashlib
import pathlib
import subprocess
import sys

import pytest

from data_pipeline.cleaning import CleaningOptions
from data_pipeline.sources import find_sources
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab_training import (
    BERT_HEAD,
    train_sentencepiece,
    train_vocabulary,
    train_wordpiece,
    training_text,
)

# Many pairs of characters are equally frequent: what ties are broken by shows in the result.
TEXT = [f"{a}{b}{c}{d} Été {a}{c}!" for a in "bcdf" for b in "aeiou" for c in "lmnr" for d in "xyz"]
TRAIN = """
import hashlib, sys
from data_pipeline.vocab_training import train_vocabulary
from tests.data_pipeline.test_vocab_training import TEXT
trained = train_vocabulary(sys.argv[1], lambda: TEXT, int(sys.argv[2]), True)
print(hashlib.sha256(trained).hexdigest())
"""


def test_wordpiece_has_berts_layout_and_the_size_asked_for():
    pieces = train_wordpiece(lambda: TEXT, 180, lowercase=True)
    assert len(pieces) == len(set(pieces)) == 180
    assert [pieces.index(p) for p in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [
        0,
        100,
        101,
        102,
        103,
    ]
    assert pieces[1:100] == [f"[unused{i}]" for i in range(99)]
    alphabet = sorted({c for c in "!tebcdfaeioulmnrxyz"})
    assert pieces[104 : 104 + len(alphabet)] == alphabet
    assert "##!" not in pieces  # punctuation never continues a word


def test_the_first_merge_is_the_most_frequent_pair():
    pieces = train_wordpiece(lambda: ["ab"] * 9 + ["cab cab"] * 3 + ["cd"] * 8, 116, lowercase=True)
    pairs = collections.Counter({("a", "##b"): 9, ("c", "##a"): 6, ("##a", "##b"): 6})
    pairs["c", "##d"] = 8
    (first, second), _ = pairs.most_common(1)[0]
    learned = [p for p in pieces[len(BERT_HEAD) :] if len(p.removeprefix("##")) > 1]
    assert learned[0] == first + second.removeprefix("##")


def test_case_and_accents_are_kept_where_asked():
    pieces = train_wordpiece(lambda: TEXT, 180, lowercase=False)
    assert {"É", "##é"} <= set(pieces)


def test_ascii_is_kept_however_rare_and_other_rare_characters_are_not():
    text = ["word " * 4000, "7 (x) \u0411"]
    pieces = train_wordpiece(lambda: text, 121, lowercase=True)
    assert {"7", "(", "x"} <= set(pieces)
    assert "\u0431" not in pieces


@pytest.mark.parametrize("kind, size", [("wordpiece", 180), ("sentencepiece", 110)])
def test_another_process_trains_the_same_bytes(kind, size):
    here = hashlib.sha256(train_vocabulary(kind, lambda: TEXT, size, True)).hexdigest()
    root = pathlib.Path(__file__).parents[2]
    there = subprocess.run(
        [sys.executable, "-c", TRAIN, kind, str(size)],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here


def test_sentencepiece_keeps_case_where_asked(tmp_path):
    path = tmp_path / "cased.model"
    path.write_bytes(train_sentencepiece(lambda: TEXT, 150, lowercase=False))
    loaded = load_vocabulary(path)
    assert not loaded.lowercase
    assert loaded.decode(loaded.encode(["Été bal"])[0]) == "Été bal"


@pytest.mark.parametrize(
    "kind, size, sentence",
    [
        ("wordpiece", 120, r"--vocab_size is 120, too small: .* takes 104 .* give 139 or more"),
        ("wordpiece", 5000, r"--vocab_size is 5000, but the text yields no more than \d+ pieces"),
        ("sentencepiece", 20, r"--vocab_size is 20, too small: .* take \d+; give more"),
        ("sentencepiece", 5000, r"--vocab_size is 5000, but the text yields no more than \d+ pie"),
    ],
)
def test_sizes_that_the_text_cannot_fill_or_fit_are_refused(kind, size, sentence):
    with pytest.raises(ValueError, match=sentence):
        train_vocabulary(kind, lambda: TEXT, size, lowercase=True)


def test_every_file_gives_an_equal_share_of_the_text(tmp_path):
    for name, lines in (("a", 1000), ("b", 1000), ("c", 3)):
        (tmp_path / name).write_text("".join(f"{name} {i:07d}\n\n" for i in range(lines)))
    sources = find_sources(f"{tmp_path}/*", TextOptions())
    read = list(training_text(sources, TextOptions(), CleaningOptions(), limit_chars=300))
    assert collections.Counter(line[0] for line in read) == {"a": 12, "b": 12, "c": 3}
