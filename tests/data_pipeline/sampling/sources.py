"""Open row sources over small corpora, and read the rows and texts of an epoch."""

from dataclasses import replace

import numpy as np

from data_pipeline.sampling.stream import PretrainSource, VocabInfo, open_source
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import Split
from tests.data_pipeline.corpora import SPECIAL_IDS, vocab_size_of

Rows = dict[str, np.ndarray]


def source_of(
    split: Split,
    seq_len: int,
    slots: int,
    options: PretrainOptions | None = None,
    special_ids: dict[str, int] = SPECIAL_IDS,
    **changed: object,
) -> PretrainSource:
    """Open the rows of a split, with two walks over it unless the options differ."""
    options = replace(options or PretrainOptions(dupe_factor=2), **changed)
    counts_V = np.bincount(split.token_ids, minlength=vocab_size_of(split))
    pieces = VocabInfo(vocab_size_of(split), special_ids, token_counts_V=counts_V)
    return open_source(split, pieces, options, seq_len, slots)


def epoch_rows(source: PretrainSource, epoch: int = 0) -> Rows:
    first = sum(source.rows_in_epoch(before) for before in range(epoch))
    return source.rows(np.arange(first, first + source.rows_in_epoch(epoch)))


def unmasked(rows: Rows) -> np.ndarray:
    """Return input_ids with the masked tokens restored."""
    ids = rows["input_ids"].copy()
    row, slot = np.nonzero(rows["masked_lm_weights"])
    ids[row, rows["masked_lm_positions"][row, slot]] = rows["masked_lm_ids"][row, slot]
    return ids


def assert_same(left: Rows, right: Rows) -> None:
    """Assert that rows are equal in names, dtypes and values."""
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
