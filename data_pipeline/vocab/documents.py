"""Encode the sentences of documents to the ids that the documents have, sentences joined by spaces.

Some tokenizers give a word other ids at a text's start than after a space, or have pieces across
words; then a sentence encoded alone has other ids than within its document.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from data_pipeline.io.refused import Refused

Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
EncodeDocuments = Callable[[Sequence[str], Sequence[int]], tuple[np.ndarray, np.ndarray]]
# The ids of a text, and the start and the end of the characters that each covers.
EncodeAligned = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]


def refuse_one_text(texts: object) -> None:
    """Raise Refused for a string, whose characters would be read as texts."""
    if isinstance(texts, str):
        raise Refused(f"{texts!r:.80} is one text, and a list of texts is read; put it in [ ]")


def encode_sentences_alone(encode: Encode, spaced: bool) -> EncodeDocuments:
    """Return an encoder of documents that encodes each sentence by itself.

    With `spaced` every sentence but a document's first has the space before it that joins it. That
    is exact where sentences neither begin nor end with white space, as a build's sentences.
    """

    def encode_documents(
        sentences: Sequence[str], sentence_counts: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        if spaced:
            firsts = {0, *np.cumsum(sentence_counts).tolist()}
            sentences = [
                sentence if number in firsts else f" {sentence}"
                for number, sentence in enumerate(sentences)
            ]
        return encode(sentences)

    return encode_documents


def encode_documents_whole(
    encode_aligned: EncodeAligned, dtype: np.dtype, prepare: Callable[[str], str] | None = None
) -> EncodeDocuments:
    """Return an encoder of documents that encodes each as one text and cuts its tokens.

    A token belongs to the sentence in which it begins, the space before a sentence to it.
    `prepare` changes a sentence before they are joined.
    """

    def encode_document(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if prepare is not None:
            sentences = [*map(prepare, sentences)]
        ids, spans = encode_aligned(" ".join(sentences))
        sizes_S = np.fromiter(map(len, sentences), np.int64, len(sentences))
        ends_S = np.cumsum(sizes_S + 1) - 1
        starts_T = np.maximum.accumulate(np.array([start for start, _ in spans], np.int64))
        sentence_T = np.searchsorted(ends_S[:-1], starts_T, side="right")
        return np.array(ids, dtype), np.bincount(sentence_T, minlength=len(sentences))

    def encode_documents(
        sentences: Sequence[str], sentence_counts: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        encoded: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, dtype), np.zeros(0, np.int64))]
        ends = np.cumsum(sentence_counts).tolist()
        for count, end in zip(sentence_counts, ends, strict=True):
            if count:
                encoded.append(encode_document(sentences[end - count : end]))
        ids, lengths = zip(*encoded, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    return encode_documents


def flatten_ids(encoded: Sequence[Sequence[int]], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of N texts one after another, and int64[N], the number of each text."""
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    flat = itertools.chain.from_iterable(encoded)
    return np.fromiter(flat, dtype, int(lengths.sum())), lengths


def split_ids(flat_ids: np.ndarray, lengths_N: np.ndarray) -> list[np.ndarray]:
    """Return the ids of each of N texts, from what flatten_ids or Vocabulary.encode returns."""
    return np.split(flat_ids, np.cumsum(lengths_N))[:-1]
