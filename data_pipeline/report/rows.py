"""Sample the rows that training would read: label balance, masks, padding, and rows as text."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from data_pipeline.report.lengths import Lengths, measure_lengths
from data_pipeline.sampling.stream import PretrainSource, VocabInfo, open_source
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import MIN_EXAMPLE_TOKENS
from data_pipeline.store import Split, Store
from data_pipeline.vocab import WORD_START, Vocabulary

SPECIAL_PIECES = 3  # [CLS] A [SEP] B [SEP]
SAMPLED_ROWS = 8192
PACKED_EXAMPLES = 8  # the most in a row
_ROWS_A_CALL = 1024
_SPECIALS = ("[CLS]", "[SEP]", "<cls>", "<sep>", "<s>", "</s>")


@dataclasses.dataclass(frozen=True)
class RowHealth:
    """Hold measurements of random rows of the first epoch, made with the default settings."""

    seq_len: int
    sampled: int
    epoch_rows: int
    heldout_rows: int  # rows of one pass over the held-out split
    random_share: float  # share of next-sentence labels that are 1
    packed_examples: int  # PACKED_EXAMPLES, or as many as a short row has room for
    packed_padding_share: float  # measured with packed_examples in a row; other fields with one
    tokens: Lengths  # tokens per row, padding not counted
    masks: Lengths  # predictions per row

    @property
    def padding_share(self) -> float:
        return 1.0 - self.tokens.mean / self.seq_len


@dataclasses.dataclass(frozen=True)
class ShownToken:
    """Hold a token of an example as the model sees it."""

    text: str  # the vocabulary entry without its mark for the start or inside of a word
    starts_word: bool
    original: str | None = None  # the token to predict; None if it is not masked
    fate: str = ""  # if it is predicted: hidden by [MASK], kept, or replaced by a random token
    piece: str = ""  # the vocabulary's spelling, such as ##ing
    segment: int = 0  # 0 is A, 1 is B

    @property
    def is_special(self) -> bool:
        return self.text in _SPECIALS


@dataclasses.dataclass(frozen=True)
class ShownExample:
    """Hold an example of a row as text, without padding."""

    is_random: bool  # label 1: B does not follow A, or, with segments="sop", A and B are swapped
    tokens: tuple[ShownToken, ...]


def show_row(
    row: Mapping[str, np.ndarray], vocabulary: Vocabulary, pieces: list[str]
) -> tuple[ShownExample, ...]:
    """Turn one row of a pre-training batch into the text of its examples.

    Args:
      row: the fields of a batch without their batch dimension; a packed row has `example_ids`.
      vocabulary: the vocabulary of the store.
      pieces: `vocabulary.readable_pieces()`, made once by the caller: a call takes time.
    """
    is_predicted_P = row["masked_lm_weights"] > 0
    original_ids = dict(
        zip(
            row["masked_lm_positions"][is_predicted_P].tolist(),
            row["masked_lm_ids"][is_predicted_P].tolist(),
            strict=True,
        )
    )
    is_continuation, mask_id = vocabulary.is_continuation, vocabulary.special_ids["mask"]
    example_S = row.get("example_ids", row["input_mask"])
    labels = np.atleast_1d(row["next_sentence_labels"])
    examples = []
    for number in range(int(example_S.max(initial=0))):
        tokens = []
        for position in np.flatnonzero((example_S == number + 1) & (row["input_mask"] != 0)):
            token_id = int(row["input_ids"][position])
            piece = pieces[token_id]
            original_id = original_ids.get(int(position))
            token = ShownToken(
                text=vocabulary.strip_marks(piece).removeprefix(WORD_START) or piece,
                starts_word=not is_continuation[token_id],
                original=None if original_id is None else pieces[original_id],
                fate="" if original_id is None else _fate(token_id, original_id, mask_id),
                piece=piece,
                segment=int(row["segment_ids"][position]),
            )
            tokens.append(token)
        examples.append(ShownExample(bool(labels[number]), tuple(tokens)))
    return tuple(examples)


def _fate(token_id: int, original_id: int, mask_id: int) -> str:
    if token_id == mask_id:
        return "hidden"
    return "kept" if token_id == original_id else "replaced"


def open_sampler(
    store: Store, split: Split, seq_len: int, packed_examples: int = 1
) -> PretrainSource:
    """Open the rows of training, with a dupe_factor of 1 in place of 10 to save time.

    Raises:
      Refused: a sequence length that no pair fits into, or a split of fewer than 2 documents.
    """
    options = PretrainOptions(dupe_factor=1, packed_examples=packed_examples)
    pieces = VocabInfo(store.vocab_size, store.special_ids, store.train.token_counts)
    return open_source(split, pieces, options, seq_len, math.ceil(0.15 * seq_len))


def measure_rows(
    store: Store, vocabulary: Vocabulary, seq_len: int, examples: int
) -> tuple[RowHealth, tuple[ShownExample, ...]]:
    """Sample the training split's rows and show the first `examples` of them.

    Raises:
      Refused: as open_sampler.
    """
    source = open_sampler(store, store.train, seq_len)
    tokens, masks, random_rows = [], [], 0
    for rows in _sample(source):
        tokens.append(rows["input_mask"].sum(axis=1, dtype=np.int64))
        masks.append(rows["masked_lm_weights"].sum(axis=1).astype(np.int64))
        random_rows += int(rows["next_sentence_labels"].sum())
    lengths = measure_lengths(tokens, is_even=True)
    packed_examples = min(PACKED_EXAMPLES, seq_len // MIN_EXAMPLE_TOKENS)
    packed = open_sampler(store, store.train, seq_len, packed_examples)
    packed_tokens = [rows["input_mask"].sum(axis=1, dtype=np.int64) for rows in _sample(packed)]
    health = RowHealth(
        seq_len=seq_len,
        sampled=lengths.count,
        epoch_rows=source.rows_in_epoch(0),
        heldout_rows=open_sampler(store, store.heldout, seq_len).rows_in_epoch(0),
        random_share=random_rows / lengths.count,
        packed_examples=packed_examples,
        packed_padding_share=1.0 - float(np.mean(np.concatenate(packed_tokens))) / seq_len,
        tokens=lengths,
        masks=measure_lengths(masks, is_even=True),
    )
    return health, show_first_examples(source, vocabulary, min(examples, lengths.count))


def _sample(source: PretrainSource) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows of the first epoch in order, which is a random order of their texts."""
    sampled = min(SAMPLED_ROWS, source.rows_in_epoch(0))
    for start in range(0, sampled, _ROWS_A_CALL):
        yield source.rows(np.arange(start, min(start + _ROWS_A_CALL, sampled)))


def show_first_examples(
    source: PretrainSource, vocabulary: Vocabulary, count: int
) -> tuple[ShownExample, ...]:
    """Show the first rows of a source with one example in a row."""
    rows, pieces = source.rows(np.arange(count)), vocabulary.readable_pieces()
    return tuple(
        example
        for number in range(count)
        for example in show_row(
            {name: array[number] for name, array in rows.items()}, vocabulary, pieces
        )
    )
