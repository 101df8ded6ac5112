"""Rows of texts and pairs, worked out from the ids of a small vocabulary by hand."""

import numpy as np
import pytest

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks import encode
from bert_jax.tasks.task import CLASSIFY, REGRESS
from tests.bert_jax.tasks.glue_layouts import WORDS, vocabulary

__all__ = ["vocabulary"]  # a fixture

CLS, SEP = 2, 3


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
    made = encode.encode_texts(texts, None, vocabulary, TaskOptions(max_seq_length=5))
    assert rows_of(made) == [([CLS, *ids(text), SEP], len(ids(text)) + 2) for text in texts]
    assert made.empty == 1 and made.truncated == 0


def test_pairs_lose_the_end_of_the_longer_text_and_may_be_empty(vocabulary):
    options = TaskOptions(max_seq_length=8)
    made = encode.encode_texts(["the cat sat on the mat"], ["a dog"], vocabulary, options)
    assert rows_of(made) == [([CLS, *ids("the cat sat"), SEP, *ids("a dog"), SEP], 5)]
    assert made.notes("dev", 8) == ["dev: 1 row (100.0%) cut to 8"]
    # Control characters and spaces: WordPiece keeps nothing of them.
    texts, options = ["a cat", " \u200e\x07 ", ""], TaskOptions(max_seq_length=9)
    made = encode.encode_texts(texts, ["", "a", "\ufffd"], vocabulary, options)
    assert rows_of(made) == [
        ([CLS, *ids("a cat"), SEP, SEP], 4),
        ([CLS, SEP, *ids("a"), SEP], 2),
        ([CLS, SEP, SEP], 2),
    ]
    (note,) = made.notes("test", 9)
    assert made.empty == 3 and note.startswith("test: 3 rows")


def test_rows_too_short_for_a_text_are_refused(vocabulary):
    with pytest.raises(ValueError, match=r"max_seq_length is 4; a row has 3 special tokens and n"):
        encode.encode_texts(["a"], ["the"], vocabulary, TaskOptions(max_seq_length=4))


def test_a_stride_makes_windows_of_long_texts_and_leaves_short_ones(vocabulary):
    """Rows of 5 hold 3 words: 8 words, 2 apart, are words 0-2, 2-4, 4-6 and 6-7."""
    texts = ["a cat", "the cat sat on the big mat .", "", "a dog ran"]
    options = TaskOptions(max_seq_length=5, window_stride=2)
    made = encode.encode_texts(texts, None, vocabulary, options)
    windows = ["a cat", "the cat sat", "sat on the", "the big mat", "mat .", "", "a dog ran"]
    assert rows_of(made) == [([CLS, *ids(text), SEP], len(ids(text)) + 2) for text in windows]
    assert made.windows_N.tolist() == [1, 4, 1, 1] and made.truncated == 0
    labeled = made.labeled({"label_ids": np.array([3, 0, 1, 2], np.int32)})
    assert labeled.labels["label_ids"].tolist() == [3, 0, 0, 0, 0, 1, 2]
    assert made.notes("dev", 5)[1] == "dev: 1 row longer than 5, cut into windows: 7 in all"
    # A stride longer than a window would leave words out: it is the window's length then.
    options = TaskOptions(max_seq_length=5, window_stride=99)
    far = encode.encode_texts(texts[1:2], None, vocabulary, options)
    assert [row[1:-1] for row, _ in rows_of(far)] == [
        ids("the cat sat"),
        ids("on the big"),
        ids("mat ."),
    ]


def test_windows_are_joined_by_the_mean_of_what_each_predicts():
    logits_RC = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    windows_N = np.array([1, 3, 2])
    joined = encode.join_windows(CLASSIFY, logits_RC, windows_N)
    np.testing.assert_array_equal(joined[0], logits_RC[0])
    probabilities_RC = np.exp(logits_RC) / np.exp(logits_RC).sum(axis=1, keepdims=True)
    by_hand = np.log(
        [probabilities_RC[1:4].prod(0) ** (1 / 3), probabilities_RC[4:].prod(0) ** 0.5]
    )
    np.testing.assert_allclose(joined[1:], by_hand, rtol=1e-5)
    numbers = encode.join_windows(REGRESS, logits_RC[:, :1], windows_N)
    expected = [logits_RC[0, 0], logits_RC[1:4, 0].mean(), logits_RC[4:, 0].mean()]
    np.testing.assert_allclose(numbers[:, 0], expected, rtol=1e-6)
    every_text_alone = encode.join_windows(CLASSIFY, logits_RC, np.ones(6, np.int64))
    assert every_text_alone is logits_RC
