"""Sentence pairs: a walk finds the pairs of one pass over the corpus, a pair resolves to tokens.

BERT reads a document front to back. Sentences are collected into a chunk until it holds a target
number of tokens; the chunk is split in two at a random sentence; the second half stays, or is
replaced by text from another document and goes back to be read again. Each choice is hashed from
the chunk's first sentence, so the next chunk follows from that sentence alone, all documents can
walk at the same time, and a pair can be made again from its first sentence.
"""

import dataclasses

import numpy as np

from data_pipeline import hashing
from data_pipeline.options import PretrainOptions
from data_pipeline.store import Split

# Pieces that are not text: [CLS] A [SEP] B [SEP].
SPECIAL_PIECES = 3
# [CLS] a [SEP] b [SEP]: one token of text on each side.
SHORTEST_SEQ_LEN = 5
LONGEST_SEQ_LEN = 2**15

# What a key is for; a number once given is never given again.
_WALK, _TARGET, _SPLIT, _SAME, _DOCUMENT, _START, _CUT_A, _CUT_B = range(1, 9)

# Documents walk together in blocks of about this many sentences (8 bytes each, several times).
_BLOCK_SENTENCES = 1 << 20
# With this few documents left, NumPy's cost per call outweighs the work: each goes on alone.
_FEW_DOCUMENTS = 64
_ALONE_SENTENCES = 1 << 16


@dataclasses.dataclass(frozen=True)
class WalkRules:
    """All that a walk depends on beside the corpus."""

    key: int  # hashed from the seed, the sequence length and the walk's number
    seq_len: int
    short_seq_prob: float
    exact: bool  # Google's rules to the letter: one target for all chunks of a document

    @property
    def text_tokens(self) -> int:
        """Most tokens of text in a sequence."""
        return self.seq_len - SPECIAL_PIECES


@dataclasses.dataclass(frozen=True)
class Walk:
    """All pairs of one pass over a split, N of them, in the order of the corpus."""

    rules: WalkRules
    first_sentence_N: np.ndarray  # uint32, where the chunk starts
    document_N: np.ndarray  # uint32, the document it lies in
    sentences_N: np.ndarray  # uint16, how many sentences the chunk has

    def __len__(self) -> int:
        return len(self.first_sentence_N)


@dataclasses.dataclass(frozen=True)
class Spans:
    """The text of B pairs as slices of the split's token_ids, truncated to fit."""

    first_sentence_B: np.ndarray  # int64, names the pair within its walk
    a_start_B: np.ndarray  # int64
    a_tokens_B: np.ndarray  # int64, 1 or more
    b_start_B: np.ndarray
    b_tokens_B: np.ndarray
    is_random_B: np.ndarray  # bool, B does not follow A


def walk_rules(options: PretrainOptions, seq_len: int, walk: int) -> WalkRules:
    """The rules of walk number `walk`, from 0 to dupe_factor - 1."""
    return WalkRules(
        key=hashing.subkey(options.random_seed, _WALK, seq_len, walk),
        seq_len=seq_len,
        short_seq_prob=options.short_seq_prob,
        exact=options.exact,
    )


def target_tokens(rules: WalkRules, document_N: np.ndarray, first_N: np.ndarray) -> np.ndarray:
    """How many tokens a chunk aims at: the most that fit, or sometimes a random lower number.

    Google draws the number once for a document, which makes passes differ in size by 2-15% and
    16-21% of pairs short; drawn for each chunk the share is the short_seq_prob that was asked for.

    Shapes: integer[N], integer[N] -> int64[N].

    Source: create_pretraining_data.py@eedf5716ce, create_instances_from_document.
    """
    bits = hashing.hash64(
        hashing.subkey(rules.key, _TARGET), document_N if rules.exact else first_N
    )
    short = 2 + hashing.uniform_below(bits, rules.text_tokens - 1)
    return np.where(hashing.chance(bits, rules.short_seq_prob), short, rules.text_tokens)


def split_chunks(
    rules: WalkRules, first_N: np.ndarray, sentences_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many sentences of each chunk become A, and whether B comes from elsewhere.

    A chunk of one sentence has nothing left for B, which is then always random.

    Shapes: int64[N], int64[N] -> int64[N] from 1 to sentences - 1 (or 1), bool[N].
    """
    bits = hashing.hash64(hashing.subkey(rules.key, _SPLIT), first_N)
    a_sentences_N = 1 + hashing.uniform_below(bits, np.maximum(sentences_N - 1, 1))
    return a_sentences_N, (sentences_N == 1) | hashing.chance(bits, 0.5)


def walk_pairs(split: Split, rules: WalkRules, block_sentences: int = _BLOCK_SENTENCES) -> Walk:
    """Find the pairs of one pass over all documents of a split.

    Memory: 10 bytes a pair, twice while the blocks are joined, and some 10 MiB for a block of a
    million sentences. The result is the same for any block size.

    Raises:
      ValueError: a document without sentences or a sentence without tokens.
    """
    offsets_D = split.document_offsets
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    start = 0
    while start < split.documents:
        # Whole documents only; one that is longer than a block is a block of its own.
        limit = offsets_D[start] + block_sentences
        stop = max(start + 1, int(np.searchsorted(offsets_D, limit, side="right")) - 1)
        parts.append(_walk_block(split, rules, start, stop))
        start = stop
    first, document, sentences = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Walk(rules, first, document, sentences)


def _walk_block(
    split: Split, rules: WalkRules, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of documents start to stop - 1: first sentence, document, number of sentences."""
    base = int(split.document_offsets[start])
    bounds = np.asarray(split.document_offsets[start : stop + 1], np.int64) - base
    offsets = np.asarray(split.sentence_offsets[base : base + int(bounds[-1]) + 1], np.int64)
    _check_no_gaps(split, bounds, offsets, start, base)

    chunk_sentences = np.zeros(int(bounds[-1]), np.uint16)
    documents = np.arange(start, stop)
    at, end = bounds[:-1].copy(), bounds[1:]
    while len(at) > _FEW_DOCUMENTS:
        sentences, next_at = _next_chunks(rules, offsets, documents, at, end, base)
        chunk_sentences[at] = sentences
        live = next_at < end
        at, end, documents = next_at[live], end[live], documents[live]
    for document, at_one, end_one in zip(documents, at, end, strict=True):
        _walk_alone(rules, offsets, int(document), int(at_one), int(end_one), base, chunk_sentences)

    first = np.flatnonzero(chunk_sentences)
    pairs_of_document = np.diff(np.searchsorted(first, bounds))
    document_N = np.repeat(np.arange(start, stop, dtype=np.uint32), pairs_of_document)
    return (first + base).astype(np.uint32), document_N, chunk_sentences[first]


def _next_chunks(
    rules: WalkRules,
    offsets: np.ndarray,
    documents_N: np.ndarray | int,
    at_N: np.ndarray,
    end_N: np.ndarray | int,
    base: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The chunk that starts at each sentence: how many sentences, and where the next one starts."""
    first_N = at_N + base
    targets_N = target_tokens(rules, np.broadcast_to(documents_N, at_N.shape), first_N)
    chunk_end_N = np.minimum(np.searchsorted(offsets, offsets[at_N] + targets_N), end_N)
    sentences_N = chunk_end_N - at_N
    a_sentences_N, is_random_N = split_chunks(rules, first_N, sentences_N)
    return sentences_N, np.where(is_random_N, at_N + a_sentences_N, chunk_end_N)


def _walk_alone(
    rules: WalkRules,
    offsets: np.ndarray,
    document: int,
    at: int,
    end: int,
    base: int,
    chunk_sentences: np.ndarray,
) -> None:
    """Walk one document to its end, noting each chunk's sentences at its first one.

    What would follow is computed for every sentence of a stretch at once, then only looked up.
    """
    while at < end:
        stretch = np.arange(at, min(at + _ALONE_SENTENCES, end))
        sentences, next_at = _next_chunks(rules, offsets, document, stretch, end, base)
        following = (next_at - at).tolist()
        visited, step = [], 0
        while step < len(following):
            visited.append(step)
            step = following[step]
        chunk_sentences[stretch[visited]] = sentences[visited]
        at += step


def _check_no_gaps(
    split: Split, bounds: np.ndarray, offsets: np.ndarray, start: int, base: int
) -> None:
    """Raise if a document has no sentence or a sentence no token: a chunk would never end."""
    if (bounds[1:] <= bounds[:-1]).any():
        document = start + int(np.argmax(bounds[1:] <= bounds[:-1]))
        raise ValueError(
            f"document {document} of split {split.name} has no sentences; every document of a "
            "store has one or more: build the store again"
        )
    if (offsets[1:] <= offsets[:-1]).any():
        sentence = base + int(np.argmax(offsets[1:] <= offsets[:-1]))
        raise ValueError(
            f"sentence {sentence} of split {split.name} has no tokens; every sentence of a store "
            "has one or more: build the store again"
        )


def resolve(split: Split, walk: Walk, pairs_B: np.ndarray, epoch_key: int) -> Spans:
    """The tokens of the pairs with the given numbers in a walk.

    The text belongs to the walk; the tokens that are cut off to fit seq_len to the epoch.

    Shapes: int64[B] -> Spans of B.

    Source: create_pretraining_data.py@eedf5716ce, create_instances_from_document.
    """
    rules, offsets = walk.rules, split.sentence_offsets
    first_B = walk.first_sentence_N[pairs_B].astype(np.int64)
    document_B = walk.document_N[pairs_B].astype(np.int64)
    sentences_B = walk.sentences_N[pairs_B].astype(np.int64)
    a_sentences_B, is_random_B = split_chunks(rules, first_B, sentences_B)
    a_start_B = offsets[first_B]
    a_whole_B = offsets[first_B + a_sentences_B] - a_start_B

    b_first_B, b_end_B = first_B + a_sentences_B, first_B + sentences_B
    rows = np.flatnonzero(is_random_B)
    wanted = target_tokens(rules, document_B[rows], first_B[rows]) - a_whole_B[rows]
    b_first_B[rows], b_end_B[rows] = _random_segments(
        split, rules, first_B[rows], document_B[rows], wanted
    )
    b_start_B = offsets[b_first_B]
    b_whole_B = offsets[b_end_B] - b_start_B

    a_tokens_B, b_tokens_B = truncated(a_whole_B, b_whole_B, rules.text_tokens)
    cut_a_key, cut_b_key = hashing.subkey(epoch_key, _CUT_A), hashing.subkey(epoch_key, _CUT_B)
    a_front_B = hashing.binomial_half(cut_a_key, first_B, a_whole_B - a_tokens_B)
    b_front_B = hashing.binomial_half(cut_b_key, first_B, b_whole_B - b_tokens_B)
    return Spans(
        first_sentence_B=first_B,
        a_start_B=a_start_B + a_front_B,
        a_tokens_B=a_tokens_B,
        b_start_B=b_start_B + b_front_B,
        b_tokens_B=b_tokens_B,
        is_random_B=is_random_B,
    )


def truncated(
    a_tokens_B: np.ndarray, b_tokens_B: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B after dropping tokens of the longer one, of B on a tie, until they fit.

    Each dropped token comes from the front or the back with equal chance.

    Shapes: int64[B], int64[B] -> int64[B], int64[B] with a sum of at most `most`.

    Source: create_pretraining_data.py@eedf5716ce, truncate_seq_pair, in closed form.
    """
    b_kept_B = np.minimum(b_tokens_B, np.maximum(most // 2, most - a_tokens_B))
    return np.minimum(a_tokens_B, most - b_kept_B), b_kept_B


def _random_segments(
    split: Split,
    rules: WalkRules,
    first_N: np.ndarray,
    document_N: np.ndarray,
    wanted_tokens_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences of other documents, from a random one on until there are enough tokens.

    Shapes: int64[N] three times -> first sentence int64[N], sentence after the last int64[N].
    """
    # Any document but the pair's own.
    bits = hashing.hash64(hashing.subkey(rules.key, _DOCUMENT), first_N)
    other_N = hashing.uniform_below(bits, split.documents - 1)
    other_N += other_N >= document_N
    if rules.exact:
        # Google draws up to ten times and keeps the tenth whatever it is.
        bits = hashing.hash64(hashing.subkey(rules.key, _SAME), first_N)
        is_same_N = bits < np.uint64(2**64 // split.documents**10)
        other_N = np.where(is_same_N, document_N, other_N)
    document_start_N = split.document_offsets[other_N]
    document_end_N = split.document_offsets[other_N + 1]
    bits = hashing.hash64(hashing.subkey(rules.key, _START), first_N)
    start_N = document_start_N + hashing.uniform_below(bits, document_end_N - document_start_N)

    # The end lies within `wanted` sentences, each holding a token or more: a bisection there
    # stays on a few memory pages, where one over the whole corpus misses the cache at each step.
    offsets = split.sentence_offsets
    enough_N = offsets[start_N] + wanted_tokens_N
    low_N = start_N + 1
    high_N = np.clip(start_N + wanted_tokens_N, low_N, document_end_N)
    while (low_N < high_N).any():
        middle_N = (low_N + high_N) >> 1
        is_enough_N = offsets[middle_N] >= enough_N
        high_N = np.where(is_enough_N, middle_N, high_N)
        low_N = np.where(is_enough_N, low_N, np.minimum(middle_N + 1, high_N))
    return start_N, low_N
