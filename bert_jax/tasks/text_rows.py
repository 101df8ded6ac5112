"""Texts, or pairs of texts, of a task -> framed rows of token ids, and what was found in them."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from data_pipeline.finetune import EncodedRows
from data_pipeline.framing import flat_rows, frame
from data_pipeline.vocab import Vocabulary

_CHUNK_ROWS = 4096  # as Python lists a chunk of ids takes ten times the memory that it will


@dataclasses.dataclass(frozen=True)
class TextRows:
    """Rows without labels, and how many texts were not taken as they stand."""

    rows: EncodedRows
    empty: int  # rows with a text of no piece: an empty segment
    truncated: int  # rows that were cut to max_seq_length

    def labelled(self, labels: Mapping[str, np.ndarray]) -> EncodedRows:
        """The rows with the labels of their examples."""
        return dataclasses.replace(self.rows, labels=labels)

    def notes(self, split: str, max_seq_length: int) -> list[str]:
        """What a person should know of a split, a line each."""
        told = []
        if self.empty:
            told.append(f"{split}: {_rows(self.empty)} with a text of no piece: an empty segment")
        if self.truncated:
            share = self.truncated / self.rows.examples
            told.append(f"{split}: {_rows(self.truncated)} ({share:.1%}) cut to {max_seq_length}")
        return told


def text_rows(
    texts: Sequence[str],
    second_texts: Sequence[str] | None,
    vocabulary: Vocabulary,
    max_seq_length: int,
) -> TextRows:
    """The row of each text, or of each pair.

    A text that is empty, or of which the vocabulary keeps nothing, is an empty segment: every
    example keeps its place.

    Raises:
      ValueError: max_seq_length leaves no room for a text beside the special tokens.
    """
    specials = 2 if second_texts is None else 3
    if max_seq_length < specials + 2:
        raise ValueError(
            f"config.data.max_seq_length is {max_seq_length}; a row has {specials} special tokens "
            f"and needs {specials + 2} at least: the paper takes 128"
        )
    token_ids, offsets, seconds = [], [np.zeros(1, np.int64)], []
    empty = truncated = 0
    for start in range(0, len(texts), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        first_ids = _encoded(texts[chunk], vocabulary)
        second_ids = None if second_texts is None else _encoded(second_texts[chunk], vocabulary)
        framed = []
        for i, ids in enumerate(first_ids):
            other = None if second_ids is None else second_ids[i]
            tokens = len(ids) + (0 if other is None else len(other))
            empty += not ids or (other is not None and not other)
            truncated += tokens > max_seq_length - specials
            framed.append(frame(ids, other, vocabulary.special_ids, max_seq_length))
        chunk_ids, chunk_offsets, chunk_seconds = flat_rows(framed)
        token_ids.append(chunk_ids)
        offsets.append(chunk_offsets[1:] + offsets[-1][-1])
        seconds.append(chunk_seconds)
    rows = EncodedRows(np.concatenate(token_ids), np.concatenate(offsets), np.concatenate(seconds))
    return TextRows(rows, empty, truncated)


def _encoded(texts: Sequence[str], vocabulary: Vocabulary) -> list[list[int]]:
    """The ids of each text."""
    flat, lengths = vocabulary.encode(texts)
    ids = flat.tolist()
    ends = np.cumsum(lengths).tolist()
    return [ids[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"
