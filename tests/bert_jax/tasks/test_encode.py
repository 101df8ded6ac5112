"""Rows of texts and pairs, worked out from the ids of a small vocabulary by hand."""

import pytest

from bert_jax.tasks import encode
from data_pipeline.vocab import Vocabulary
from tests.bert_jax.tasks.glue_layouts import WORDS, small_vocabulary

CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    return small_vocabulary(tmp_path_factory.mktemp("vocabulary"))


def ids(text: str) -> list[int]:
    return [5 + WORDS.split().index(word) for word in text.split()]


def rows_of(made: encode.EncodedTexts) -> list[tuple[list[int], int]]:
    rows = made.rows
    spans = zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    return [
        (rows.token_ids[start:end].tolist(), int(second))
        for (start, end), second in zip(spans, rows.second_starts, strict=True)
    ]


def test_single_texts_across_chunks(vocabulary, monkeypatch):
    monkeypatch.setattr(encode, "_CHUNK_ROWS", 2)
    texts = ["the cat sat", "", "a dog", "no mat .", "yes"]
    made = encode.encode_texts(texts, None, vocabulary, 5)
    assert rows_of(made) == [([CLS, *ids(text), SEP], len(ids(text)) + 2) for text in texts]
    assert made.empty == 1 and made.truncated == 0


def test_pairs_lose_the_end_of_the_longer_text_and_may_be_empty(vocabulary):
    made = encode.encode_texts(["the cat sat on the mat"], ["a dog"], vocabulary, 8)
    assert rows_of(made) == [([CLS, *ids("the cat sat"), SEP, *ids("a dog"), SEP], 5)]
    assert made.notes("dev", 8) == ["dev: 1 row (100.0%) cut to 8"]
    # Control characters and spaces: WordPiece keeps nothing of them.
    made = encode.encode_texts(["a cat", " \u200e\x07 ", ""], ["", "a", "\ufffd"], vocabulary, 9)
    assert rows_of(made) == [
        ([CLS, *ids("a cat"), SEP, SEP], 4),
        ([CLS, SEP, *ids("a"), SEP], 2),
        ([CLS, SEP, SEP], 2),
    ]
    (note,) = made.notes("test", 9)
    assert made.empty == 3 and note.startswith("test: 3 rows")


def test_rows_too_short_for_a_text_are_refused(vocabulary):
    with pytest.raises(ValueError, match=r"max_seq_length is 4; a row has 3 special tokens and n"):
        encode.encode_texts(["a"], ["the"], vocabulary, 4)
