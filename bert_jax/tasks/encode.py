"""Encode texts or pairs of texts as rows of token ids, by the template of the vocabulary.

Dimensions: N texts, R rows, which are more where texts have several windows, C classes.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.task import CLASSIFY
from data_pipeline.io import Refused
from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.rows import EncodedRows, build_rows, join_rows
from data_pipeline.labeled.windows import cut_windows
from data_pipeline.spec.schema import GOOGLE
from data_pipeline.vocab import Vocabulary, split_ids

_CHUNK_ROWS = 4096  # Python lists of ids take ten times the memory of the arrays made of them


@dataclasses.dataclass(frozen=True)
class EncodedTexts:
    """Hold rows without labels, and how many of them are empty or truncated."""

    rows: EncodedRows
    empty: int  # rows with a text without a token: an empty segment
    truncated: int  # rows cut to max_seq_length
    windows_N: np.ndarray  # int64: rows of each text, one after another

    def labeled(self, labels: Mapping[str, np.ndarray]) -> EncodedRows:
        """Return the rows with the labels of their texts."""
        repeated = {name: np.repeat(array, self.windows_N) for name, array in labels.items()}
        return dataclasses.replace(self.rows, labels=repeated)

    def notes(self, split: str, max_seq_length: int) -> list[str]:
        """Describe the empty and the truncated rows of a split, one line each."""
        share = f"{self.truncated / len(self.windows_N):.1%}"
        several = int((self.windows_N > 1).sum())
        windows = f"longer than {max_seq_length}, cut into windows: {self.rows.examples:,} in all"
        findings = (
            (self.empty, "with a text without a token: an empty segment"),
            (self.truncated, f"({share}) cut to {max_seq_length}"),
            (several, windows),
        )
        return [
            f"{split}: {count:,} row{'s' * (count != 1)} {finding}"
            for count, finding in findings
            if count
        ]


def encode_texts(
    texts: Sequence[str],
    second_texts: Sequence[str] | None,
    vocabulary: Vocabulary,
    options: TaskOptions,
) -> EncodedTexts:
    """Encode each text, or each pair of texts, as a row.

    A text that is empty, or that leaves no token of the vocabulary, becomes an empty segment, so
    that every example keeps its position. A pair is cut by the rule of pair_truncation. A single
    text that is longer than a row is cut, or with a window_stride becomes a row per window; windows
    start window_stride tokens apart.
    """
    max_seq_length, stride = options.max_seq_length, options.window_stride
    specials = vocabulary.template.count_specials(second_texts is not None)
    if max_seq_length < specials + 2:
        raise Refused(
            f"config.data.max_seq_length is {max_seq_length}; a row has {specials} special tokens "
            f"and needs {specials + 2} at least: the paper takes 128"
        )
    chunks: list[EncodedRows] = []
    windows_N: list[int] = []
    empty = truncated = 0
    for start in range(0, len(texts), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        firsts = encode_ids(texts[chunk], vocabulary)
        seconds: Sequence[list[int] | None] = [None] * len(firsts)
        if second_texts is not None:
            seconds = encode_ids(second_texts[chunk], vocabulary)
        framed = []
        for ids, other in zip(firsts, seconds, strict=True):
            empty += not ids or other == []
            parts = [ids]
            if stride and other is None:
                spans = cut_windows(len(ids), max_seq_length - specials, stride)
                parts = [ids[first : first + length] for first, length in spans]
            else:
                truncated += len(ids) + len(other or ()) > max_seq_length - specials
            limits = vocabulary.template, max_seq_length, options.pair_truncation or GOOGLE
            framed += [frame(part, other, *limits) for part in parts]
            windows_N.append(len(parts))
        chunks.append(build_rows(framed))
    return EncodedTexts(join_rows(chunks), empty, truncated, np.array(windows_N, np.int64))


def join_windows(kind: str, logits_RC: np.ndarray, windows_N: np.ndarray) -> np.ndarray:
    """Average the logits of each text's windows: float32[N,C].

    For classes, the average is of log-probabilities; for numbers, of the numbers. A text with one
    window keeps its logits.
    """
    from scipy import special  # imported here: --help and refusals do not need it

    if len(logits_RC) == len(windows_N):
        return logits_RC
    values_RC = logits_RC.astype(np.float64)
    if kind == CLASSIFY:
        values_RC = special.log_softmax(values_RC, axis=1)
    first_N = np.cumsum(windows_N) - windows_N
    means_NC = np.add.reduceat(values_RC, first_N) / windows_N[:, None]
    is_single_N = windows_N == 1
    means_NC[is_single_N] = logits_RC[first_N[is_single_N]]
    return means_NC.astype(logits_RC.dtype)


def encode_ids(texts: Sequence[str], vocabulary: Vocabulary) -> list[list[int]]:
    """Return the token ids of each text, without special tokens."""
    return [ids.tolist() for ids in split_ids(*vocabulary.encode(texts))]
