"""Find the worst faults of a store: a vocabulary made for other text, copies of documents.

A finding is a sentence: the count or share that is out of range, and how to fix it.
"""

import collections
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from data_pipeline.store.reader import Split, Store
from data_pipeline.vocab import Vocabulary

_MAX_PIECES_PER_WORD = 2.0
_MAX_UNKNOWN_SHARE = 0.01  # share of the tokens
_MAX_STRIPPED_SHARE = 0.05
# Scripts in which combining marks are vowels and sounds: from Devanagari to Burmese, Khmer, kana.
_HAS_MARKS = re.compile("[\u0900-\u109f\u1780-\u17ff\u3040-\u30ff]").search
_MARK = "\u0e38"  # a vowel of Thai
_MANY_COPIES = 0.3  # share of the documents
_MAX_COMPARED, _FIRST_TOKENS = 50_000, 4096


def find_before_training(store: Store) -> dict[str, str]:
    """Find faults of the vocabulary and copies of documents within a second: name -> sentence."""
    counts_V = np.asarray(store.train.token_counts)
    vocabulary = store.load_vocabulary()
    tokens = counts_V.sum()
    findings = {
        "unknown_tokens": find_unknown_tokens(store.manifest),
        "pieces_per_word": find_in_words(tokens, vocabulary.count_words(counts_V)),
        "marks_stripped": find_stripped_marks(count_stripped(vocabulary, counts_V), tokens),
        "document_copies": find_document_copies(estimate_copies(store.train), _MANY_COPIES),
    }
    return {name: text for name, texts in findings.items() for text in texts}


def find_unknown_tokens(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Find a vocabulary that lacks many words of the text, by the manifest of the build."""
    unknown = manifest["unknown_token_share"]
    if unknown > _MAX_UNKNOWN_SHARE:
        yield (
            f"{unknown:.1%} of the tokens are unknown to the vocabulary: it was made for other "
            "text. Train one with --train_vocab."
        )


def find_in_words(tokens: int, words: int) -> Iterator[str]:
    """Find a vocabulary that cuts words into many pieces; `words` may be 0 for unknown."""
    if words and tokens / words > _MAX_PIECES_PER_WORD:
        yield (
            f"a word is cut into {tokens / words:.1f} pieces on average: the vocabulary "
            "was made for other text, or is too small. Train one with --train_vocab, or a larger "
            "one with --vocab_size. (Where words have no spaces between them, this says nothing, "
            "but masking=whole_word would hide whole phrases.)"
        )


def count_stripped(vocabulary: Vocabulary, counts_V: np.ndarray) -> int:
    """Count the tokens of scripts whose vowels a vocabulary strips as accents; int64[V] counts."""
    if _MARK in vocabulary.normalize("\u0e01" + _MARK):
        return 0
    has_marks_V = np.array([bool(_HAS_MARKS(piece)) for piece in vocabulary.pieces()])
    return int(counts_V[has_marks_V].sum())


def find_stripped_marks(stripped: int, tokens: int) -> Iterator[str]:
    """Find a vocabulary that strips vowels as accents, by the count of such tokens."""
    share = stripped / max(1, tokens)
    if share > _MAX_STRIPPED_SHARE:
        yield (
            f"{share:.0%} of the tokens are of a script whose vowels or sounds are combining marks "
            "(Hindi, Thai, Khmer, kana, ...), and the vocabulary strips these as accents. "
            "--lowercase=false keeps them; so does --train_vocab=unigram."
        )


def find_document_copies(share: float, most: float) -> Iterator[str]:
    """Find a training split whose share of copies is above `most`."""
    if share > most:
        yield (
            f"{share:.1%} of the training documents have the tokens of an earlier one, so the "
            "model sees them more often. --drop_duplicate_documents=true --normalize=nfc drops "
            "them."
        )


def estimate_copies(split: Split, most: int = _MAX_COMPARED) -> float:
    """Estimate, from a sample, the share of documents that are copies of an earlier one.

    Compares the first tokens of up to `most` random documents. If there are more documents, the
    share follows from the number of equal pairs in the sample.
    """
    total, number_N = split.documents, np.arange(min(split.documents, most))
    if total > most:
        number_N = np.unique(np.random.default_rng(0).integers(total, size=most))
    texts = []
    for number in number_N:
        first, last = split.document_offsets[number : number + 2]
        start, stop = int(split.sentence_offsets[first]), int(split.sentence_offsets[last])
        tokens = split.token_ids[start : min(stop, start + _FIRST_TOKENS)]
        ends = np.asarray(split.sentence_offsets[first + 1 : last + 1]) - start
        texts.append(hashlib.blake2b(tokens.tobytes() + ends.tobytes(), digest_size=8).digest())
    counts = np.array(list(collections.Counter(texts).values()), np.float64)
    if total <= most:
        return float((counts - 1).sum() / max(1, total))
    pairs = (counts * (counts - 1) / 2).sum() * (total / len(number_N)) ** 2
    equals = 2 * pairs / total  # mean number of copies of a document
    return float(equals / (1 + equals))
