"""What the sampler makes of a store: labels, masks and padding of sampled rows, and examples."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from data_pipeline.examples import Pieces, PretrainSource, open_source
from data_pipeline.lengths import Lengths, lengths_of
from data_pipeline.options import PretrainOptions
from data_pipeline.store import Split, Store
from data_pipeline.vocab import WORD_START, Vocabulary

SPECIAL_PIECES = 3  # of an example: [CLS] A [SEP] B [SEP]
SAMPLED_ROWS = 8192
PACKED_EXAMPLES = 8  # in a row, at most
_ROWS_A_CALL = 1024


@dataclasses.dataclass(frozen=True)
class RowHealth:
    """Rows drawn at random from the first epoch, with the default settings."""

    seq_len: int
    sampled: int
    epoch_rows: int
    heldout_rows: int  # in one pass over the held-out split
    random_share: float  # of next-sentence labels
    packed_padding_share: float  # with PACKED_EXAMPLES in a row; all else is of one in a row
    tokens: Lengths  # a row, padding left out
    masks: Lengths  # a row

    @property
    def padding_share(self) -> float:
        return 1.0 - self.tokens.mean / self.seq_len


@dataclasses.dataclass(frozen=True)
class Token:
    """One token of an example as the model sees it."""

    text: str
    starts_word: bool
    original: str | None = None  # the piece to predict; None where nothing is
    fate: str = ""  # of a token to predict: hidden by [MASK], kept, or replaced by any other


@dataclasses.dataclass(frozen=True)
class Example:
    """A row as text, padding left out."""

    is_random: bool  # the second segment does not follow the first
    tokens: tuple[Token, ...]


def open_sampler(
    store: Store, split: Split, seq_len: int, packed_examples: int = 1
) -> PretrainSource:
    """The rows of training, of whose kinds of epochs one is looked at instead of ten.

    Raises:
      ValueError: a sequence length that no pair fits into, or a split of fewer than 2 documents.
    """
    options = PretrainOptions(dupe_factor=1, packed_examples=packed_examples)
    pieces = Pieces(store.vocab_size, store.special_ids)
    return open_source(split, pieces, options, seq_len, math.ceil(0.15 * seq_len))


def measure_rows(
    store: Store, vocabulary: Vocabulary, seq_len: int, examples: int
) -> tuple[RowHealth, tuple[Example, ...]]:
    """Sample the training split's rows, and write the first few out.

    Raises:
      ValueError: as open_sampler.
    """
    source = open_sampler(store, store.train, seq_len)
    tokens, masks, random_rows = [], [], 0
    for rows in _sampled(source):
        tokens.append(rows["input_mask"].sum(axis=1, dtype=np.int64))
        masks.append(rows["masked_lm_weights"].sum(axis=1).astype(np.int64))
        random_rows += int(rows["next_sentence_labels"].sum())
    lengths = lengths_of(tokens, is_even=True)
    packed = open_sampler(store, store.train, seq_len, PACKED_EXAMPLES)
    packed_tokens = [rows["input_mask"].sum(axis=1, dtype=np.int64) for rows in _sampled(packed)]
    health = RowHealth(
        seq_len=seq_len,
        sampled=lengths.count,
        epoch_rows=source.rows_in_epoch(0),
        heldout_rows=open_sampler(store, store.heldout, seq_len).rows_in_epoch(0),
        random_share=random_rows / lengths.count,
        packed_padding_share=1.0 - float(np.mean(np.concatenate(packed_tokens))) / seq_len,
        tokens=lengths,
        masks=lengths_of(masks, is_even=True),
    )
    return health, examples_of(source, vocabulary, min(examples, lengths.count))


def _sampled(source: PretrainSource) -> Iterator[dict[str, np.ndarray]]:
    """Rows of the first epoch: the positions follow each other, their texts are in random order."""
    sampled = min(SAMPLED_ROWS, source.rows_in_epoch(0))
    for start in range(0, sampled, _ROWS_A_CALL):
        yield source.rows(np.arange(start, min(start + _ROWS_A_CALL, sampled)))


def examples_of(source: PretrainSource, vocabulary: Vocabulary, count: int) -> tuple[Example, ...]:
    """The first rows of a source as pieces of text."""
    rows = source.rows(np.arange(count))
    pieces, is_continuation = vocabulary.pieces(), vocabulary.is_continuation
    examples = []
    for row in range(count):
        used = rows["masked_lm_weights"][row] > 0
        places, originals = rows["masked_lm_positions"][row], rows["masked_lm_ids"][row]
        original_at = dict(zip(places[used].tolist(), originals[used].tolist(), strict=True))
        ids = rows["input_ids"][row][rows["input_mask"][row] > 0].tolist()
        tokens = []
        for place, shown in enumerate(ids):
            token = Token(_text(pieces[shown]), not is_continuation[shown])
            if place in original_at:
                original = original_at[place]
                fate = _fate(shown, original, source.special_ids["mask"])
                token = dataclasses.replace(token, original=pieces[original], fate=fate)
            tokens.append(token)
        is_random = bool(rows["next_sentence_labels"][row])
        examples.append(Example(is_random, tuple(tokens)))
    return tuple(examples)


def _fate(shown_id: int, original_id: int, mask_id: int) -> str:
    if shown_id == mask_id:
        return "hidden"
    return "kept" if shown_id == original_id else "replaced"


def _text(piece: str) -> str:
    """A piece without its marks: ##s is s, and SentencePiece's word start is a space or none."""
    return piece.removeprefix("##").removeprefix(WORD_START) or piece
