"""Walk over the corpus once and cut it into chunks, each the text of an example.

BERT reads a document front to back. Sentences are collected into a chunk until it holds a target
number of tokens. For next-sentence pairs the chunk is split in two at a random sentence; the second
part stays, or is replaced by text from elsewhere and begins the next chunk. Each choice is hashed
from the chunk's first sentence, which alone determines the chunk and the start of the next one: all
documents can be walked at the same time, and a chunk can be rebuilt from its first sentence.
"""

import dataclasses

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.spec import hashing
from data_pipeline.spec.hashing import Purpose
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import Split

MAX_SEQ_LEN = 2**15

# Documents are walked together in blocks of about this many sentences (several 8-byte arrays).
_BLOCK_SENTENCES = 1 << 20
# The last few documents are walked one by one, as NumPy's cost per call would dominate.
_FEW_DOCUMENTS = 64
_ALONE_SENTENCES = 1 << 16
# full_sentences reads across documents, in stretches of about this many sentences, which are walked
# together; the last row of each stretch stays short.
_STRETCH_SENTENCES = 1 << 13


@dataclasses.dataclass(frozen=True)
class WalkRules:
    """Hold everything that a walk depends on, except the corpus."""

    key: int  # hash of the seed, the sequence length and the walk's number
    seq_len: int
    short_seq_prob: float
    exact: bool  # Google's rules to the letter
    segments: str  # PretrainOptions.segments
    random_share: float  # nsp: share of random B among the chunks of two or more sentences

    @property
    def has_pairs(self) -> bool:
        return self.segments in ("nsp", "sop")

    @property
    def text_tokens(self) -> int:
        """Return the maximum number of text tokens in an example: seq_len minus special tokens."""
        return self.seq_len - (3 if self.has_pairs else 2)


@dataclasses.dataclass(frozen=True)
class Walk:
    """Hold the N chunks of one pass over a split, in the order of the corpus."""

    rules: WalkRules
    first_sentence_N: np.ndarray  # uint32
    document_N: np.ndarray  # uint32, the document of the first sentence
    sentences_N: np.ndarray  # uint16, sentences in the chunk

    def __len__(self) -> int:
        return len(self.first_sentence_N)


def make_rules(options: PretrainOptions, seq_len: int, walk: int, random_share: float) -> WalkRules:
    """Return the rules of walk number `walk`, from 0 to dupe_factor - 1."""
    return WalkRules(
        key=hashing.derive_key(options.random_seed, Purpose.WALK, seq_len, walk),
        seq_len=seq_len,
        short_seq_prob=options.short_seq_prob,
        exact=options.exact,
        segments=options.segments,
        random_share=random_share,
    )


def draw_targets(rules: WalkRules, document_N: np.ndarray, first_N: np.ndarray) -> np.ndarray:
    """Draw the target length of each chunk in tokens: the maximum, or sometimes a lower number.

    Google draws it once per document (rules.exact), so passes differ in size by 2-15%, and 16-21%
    of the pairs are short. With a draw per chunk, the share of short pairs is short_seq_prob.

    Shapes: integer[N], integer[N] -> int64[N].

    Source: create_pretraining_data.py@eedf5716ce, create_instances_from_document.
    """
    bits = hashing.hash64(
        hashing.derive_key(rules.key, Purpose.TARGET_LENGTH), document_N if rules.exact else first_N
    )
    short = 2 + hashing.draw_below(bits, rules.text_tokens - 1)
    return np.where(hashing.chance(bits, rules.short_seq_prob), short, rules.text_tokens)


def split_chunks(
    rules: WalkRules, first_N: np.ndarray, sentences_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw how many sentences of each chunk become A, and whether B comes from elsewhere.

    A chunk of one sentence has no sentence left for B, so in nsp its B is always random.

    Shapes: int64[N], int64[N] -> int64[N] from 1 to sentences - 1 (or 1), bool[N].
    """
    bits = hashing.hash64(hashing.derive_key(rules.key, Purpose.SPLIT_OF_CHUNK), first_N)
    a_sentences_N = 1 + hashing.draw_below(bits, np.maximum(sentences_N - 1, 1))
    if rules.segments != "nsp":
        return a_sentences_N, np.zeros(len(a_sentences_N), bool)
    return a_sentences_N, (sentences_N == 1) | hashing.chance(bits, rules.random_share)


def walk_corpus(split: Split, rules: WalkRules, block_sentences: int = _BLOCK_SENTENCES) -> Walk:
    """Find the chunks of one pass over all documents of a split.

    Memory: 10 bytes per chunk, twice that while the blocks are joined, and about 10 MiB for a block
    of a million sentences. The result does not depend on the block size.

    Raises:
      Refused: a document without sentences or a sentence without tokens.
    """
    bounds_G = _find_bounds(split, rules)
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    start = 0
    while start < len(bounds_G) - 1:
        # Whole stretches only; one that is longer than a block is a block of its own.
        limit = bounds_G[start] + block_sentences
        stop = max(start + 1, int(np.searchsorted(bounds_G, limit, side="right")) - 1)
        parts.append(walk_block(split, rules, np.asarray(bounds_G[start : stop + 1])))
        start = stop
    first, document, sentences = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Walk(rules, first, document, sentences)


def _find_bounds(split: Split, rules: WalkRules) -> np.ndarray:
    """Return the sentence offsets that no chunk may cross, int64[G+1]: document or stretch starts.

    A stretch ends before the first document that begins at or past a multiple of
    _STRETCH_SENTENCES. Each walk shifts these multiples by a random offset, so that the short last
    rows of stretches differ between walks.
    """
    offsets_D = split.document_offsets
    if rules.segments != "full_sentences":
        return offsets_D
    shift = hashing.derive_key(rules.key, Purpose.STRETCH) % _STRETCH_SENTENCES
    multiples = np.arange(_STRETCH_SENTENCES - shift, split.sentences, _STRETCH_SENTENCES)
    starts = np.searchsorted(offsets_D, multiples)
    return offsets_D[np.unique(np.concatenate([[0], starts, [split.documents]]))]


@dataclasses.dataclass(frozen=True)
class _Block:
    """Hold S consecutive sentences of whole documents; numbers count from the block's start."""

    rules: WalkRules
    base: int  # first sentence of the block, counted from the start of the split
    first_document: int
    document_bounds_D: np.ndarray  # int64, first sentence of each document, then S
    starts_S: np.ndarray  # int64[S+1], token at which each sentence starts
    ends_S: np.ndarray  # int64[S], token after each sentence: the next start, or a [SEP] before it
    chunk_sentences_S: np.ndarray  # uint16[S], sentences of the chunk that starts here; 0: none


def _open_block(split: Split, rules: WalkRules, start: int, stop: int) -> _Block:
    """Read sentences start to stop - 1, which must be whole documents, as a block."""
    offsets_D = split.document_offsets
    first, last = (int(np.searchsorted(offsets_D, sentence)) for sentence in (start, stop))
    bounds_D = np.asarray(offsets_D[first : last + 1], np.int64) - start
    starts = np.asarray(split.sentence_offsets[start : stop + 1], np.int64)
    _check_no_gaps(split, bounds_D, starts, first, start)
    ends = starts[1:]
    if rules.segments == "full_sentences":
        # There is a [SEP] between documents, which shifts all later documents by one token.
        document_S = np.repeat(np.arange(len(bounds_D) - 1), np.diff(bounds_D))
        ends = ends + document_S
        starts = starts.copy()
        starts[:-1] += document_S
    return _Block(rules, start, first, bounds_D, starts, ends, np.zeros(len(ends), np.uint16))


def walk_block(
    split: Split, rules: WalkRules, bounds_G: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the chunks of the sentences between the first and the last bound.

    `bounds_G`, int64[G+1], are document starts that no chunk may cross; the last is the end of the
    block. Returns each chunk's first sentence (uint32[N]), document (uint32[N]) and number of
    sentences (uint16[N]).
    """
    block = _open_block(split, rules, int(bounds_G[0]), int(bounds_G[-1]))
    start, end = bounds_G[:-1] - block.base, bounds_G[1:] - block.base
    # Only exact rules read document numbers, and their bounds are documents, not stretches.
    documents = block.first_document + np.arange(len(start))
    while len(start) > _FEW_DOCUMENTS:
        block.chunk_sentences_S[start], next_start = _find_next_chunks(block, documents, start, end)
        live = next_start < end
        start, end, documents = next_start[live], end[live], documents[live]
    for document, first, last in zip(documents, start, end, strict=True):
        _walk_alone(block, int(document), int(first), int(last))

    first = np.flatnonzero(block.chunk_sentences_S)
    chunks_of_document = np.diff(np.searchsorted(first, block.document_bounds_D))
    last_document = block.first_document + len(chunks_of_document)
    numbers = np.arange(block.first_document, last_document, dtype=np.uint32)
    document_N = np.repeat(numbers, chunks_of_document)
    return (first + block.base).astype(np.uint32), document_N, block.chunk_sentences_S[first]


def _find_next_chunks(
    block: _Block, documents_N: np.ndarray | int, start_N: np.ndarray, end_N: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sentence count of the chunk at each start, and the start of the next chunk."""
    rules = block.rules
    first_N = start_N + block.base
    targets_N = draw_targets(rules, np.broadcast_to(documents_N, start_N.shape), first_N)
    wanted_N = block.starts_S[start_N] + targets_N
    if rules.has_pairs:  # take sentences until the target is reached; the excess is cut later
        chunk_end_N = np.searchsorted(block.starts_S, wanted_N)
        least = 1 if rules.exact else 2
    else:  # take the whole sentences that fit
        chunk_end_N = np.searchsorted(block.ends_S, wanted_N, side="right")
        least = 1
    chunk_end_N = np.minimum(np.maximum(chunk_end_N, start_N + least), end_N)
    sentences_N = chunk_end_N - start_N
    if rules.segments != "nsp":
        return sentences_N, chunk_end_N
    a_sentences_N, is_random_N = split_chunks(rules, first_N, sentences_N)
    return sentences_N, np.where(is_random_N, start_N + a_sentences_N, chunk_end_N)


def _walk_alone(block: _Block, document: int, start: int, end: int) -> None:
    """Walk one document to its end; store each chunk's sentence count at its first sentence.

    One call computes the chunk that would start at each sentence of a part; the loop looks them up.
    """
    while start < end:
        part = np.arange(start, min(start + _ALONE_SENTENCES, end))
        sentences, next_start = _find_next_chunks(block, document, part, end)
        following = (next_start - start).tolist()
        visited, step = [], 0
        while step < len(following):
            visited.append(step)
            step = following[step]
        block.chunk_sentences_S[part[visited]] = sentences[visited]
        start += step


def _check_no_gaps(
    split: Split, bounds_D: np.ndarray, offsets_S: np.ndarray, first_document: int, base: int
) -> None:
    """Raise Refused for a document without sentences or a sentence without tokens."""
    for kind, parts, first, offsets in (
        ("document", "sentences", first_document, bounds_D),
        ("sentence", "tokens", base, offsets_S),
    ):
        is_empty = offsets[1:] <= offsets[:-1]
        if is_empty.any():
            raise Refused(
                f"{kind} {first + int(np.argmax(is_empty))} of split {split.name} has no {parts}; "
                f"every {kind} of a store has one or more: build the store again"
            )
