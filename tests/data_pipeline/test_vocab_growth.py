"""Words that a list cuts: found and counted by hand, and where a grown list has them."""

import pytest

from data_pipeline import vocab_growth
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab_growth import WordCounter

PIECES = [
    *("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("a", "c", "cell", "the", "my", "##o", "##cyte", "##s", ".", "1", "##9"),
]
TEXT = (
    "The Myocyte . Myocytes myocyte, cells CELLS cells 199 199 199 199 199",
    "the c\u00e9lls; \u03b2 \u03b2 \u03b2 \u03b2 cell",
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("".join(piece + "\n" for piece in PIECES))
    return load_vocabulary(path)


@pytest.fixture(scope="module")
def counts():
    counter = WordCounter(lowercase=True)
    for line in TEXT:
        counter.add(line)
    return counter.counts()


def test_words_are_counted_as_bert_sees_them(counts):
    """Without capitals and accents, punctuation apart."""
    assert counts == {
        **{"the": 2, "myocyte": 2, ".": 1, "myocytes": 1, ",": 1, "cells": 4, "199": 5},
        **{";": 1, "\u03b2": 4, "cell": 1},
    }


def test_case_is_kept_where_the_vocabulary_keeps_it():
    counter = WordCounter(lowercase=False)
    counter.add("Cell cell")
    assert counter.counts() == {"Cell": 1, "cell": 1}


def test_words_that_save_most_tokens_come_first(counts, vocabulary):
    """Numbers are not among them; what is unknown would be known."""
    cut = vocab_growth.cut_words(counts, vocabulary, min_count=1)
    assert [(one.word, one.count, one.pieces, one.saved) for one in cut] == [
        ("cells", 4, ("cell", "##s"), 4),
        ("myocyte", 2, ("my", "##o", "##cyte"), 4),
        ("\u03b2", 4, ("[UNK]",), 4),
        ("myocytes", 1, ("my", "##o", "##cyte", "##s"), 3),
    ]
    often = vocab_growth.cut_words(counts, vocabulary, min_count=4)
    assert [one.word for one in often] == ["cells", "\u03b2"]


def test_tokens_of_the_text_are_counted(counts, vocabulary):
    # the 2, myocyte 2 x 3, . , ; 1 each (two of them unknown), myocytes 4, cells 4 x 2, 199 5 x 3,
    # beta 4 and cell 1.
    assert vocab_growth.tokens(counts, vocabulary) == 2 + 6 + 3 + 4 + 8 + 15 + 4 + 1


@pytest.mark.parametrize(
    ("words", "fills_unused", "first", "last"),
    [
        (["cells"], True, ["[PAD]", "cells", "[unused1]", "[UNK]"], "##9"),
        (["cells", "b", "d"], True, ["[PAD]", "cells", "b", "[UNK]"], "d"),
        (["cells"], False, ["[PAD]", "[unused0]", "[unused1]", "[UNK]"], "cells"),
    ],
)
def test_the_other_pieces_keep_their_ids(words, fills_unused, first, last):
    grown = vocab_growth.grown(PIECES, words, fills_unused)
    assert grown[:4] == first and grown[-1] == last
    assert set(words) <= set(grown) and len(grown) == len(set(grown))
    kept = [piece for piece in PIECES if not piece.startswith("[unused")]
    assert [grown.index(piece) for piece in kept] == [PIECES.index(piece) for piece in kept]
