"""Rows of batches from a store of ready-made examples, by their position in an endless stream.

Every epoch has each example of the split once, in an order of its own.
"""

import dataclasses

import numpy as np

from data_pipeline import hashing, small_files
from data_pipeline.example_arrays import FOLDER, SPLIT_ROWS, field_arrays
from data_pipeline.options import OPTIONS_OF_A_RUN, PretrainOptions
from data_pipeline.schema import RowShape
from data_pipeline.store import MANIFEST, Store, open_array

_ORDER = 211
# What a store of examples leaves open; the other settings are settled in its records.
_OPEN_OPTIONS = (*OPTIONS_OF_A_RUN, "random_seed")


@dataclasses.dataclass(frozen=True)
class StoredExamples:
    """The stream of examples of one split at one sequence length. Made by open_stored_examples."""

    arrays: dict[str, np.ndarray]  # by the names of tfrecord.FEATURES, [N, ...]
    split_rows: np.ndarray  # int64, which of the N rows the split has
    shape: RowShape
    options: PretrainOptions
    vocab_size: int
    special_ids: dict[str, int]

    @property
    def mean_rows_per_epoch(self) -> float:
        """Examples in the split."""
        return float(len(self.split_rows))

    @property
    def mean_examples_in_row(self) -> float:
        """One: the format has no packed rows."""
        return 1.0

    def rows_in_epoch(self, epoch: int) -> int:
        """Examples in the split: every epoch has each once."""
        return len(self.split_rows)

    def rows(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The examples at the given positions of the stream, in the order given.

        Shapes: int64[B], 0 or more -> the fields of `shape`.

        Raises:
          ValueError: a negative position, or a token id beyond the vocabulary.
        """
        positions_B = np.asarray(positions, np.int64)
        if len(positions_B) and positions_B.min() < 0:
            raise ValueError(f"row position {positions_B.min()} is negative; the first is 0")
        row_B = self._stored_rows(positions_B)
        batch = {
            name: self.arrays[name][row_B].astype(field.dtype)
            for name, field in self.shape.fields.items()
            if name in self.arrays
        }
        batch["next_sentence_weights"] = np.ones(len(row_B), np.float32)
        self._check_ids(batch)
        return batch

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch of each position, and index within that epoch."""
        epoch_B, index_B = np.divmod(np.asarray(positions, np.int64), len(self.split_rows))
        return epoch_B, index_B

    def _stored_rows(self, positions_B: np.ndarray) -> np.ndarray:
        size = len(self.split_rows)
        epoch_B, index_B = self.locate(positions_B)
        row_B = np.empty_like(index_B)
        for epoch in np.unique(epoch_B):
            members = np.flatnonzero(epoch_B == epoch)
            key = hashing.subkey(self.options.random_seed, _ORDER, self.shape.seq_len, int(epoch))
            row_B[members] = self.split_rows[hashing.permuted(key, index_B[members], size)]
        return row_B

    def _check_ids(self, batch: dict[str, np.ndarray]) -> None:
        for name in ("input_ids", "masked_lm_ids"):
            if batch[name].size and batch[name].max() >= self.vocab_size:
                raise ValueError(
                    f"{name} has the id {batch[name].max()}, beyond the {self.vocab_size} pieces "
                    "of the store's vocabulary; the store is damaged: copy it again, or import the "
                    "records again"
                )


def open_stored_examples(
    store: Store,
    split_name: str,
    options: PretrainOptions,
    seq_len: int,
    max_predictions_per_seq: int,
) -> StoredExamples:
    """Make the stream of examples of a split of a store of kind examples.

    Raises:
      ValueError: examples of another length than the store has, a setting that the examples have
        settled already, an array missing or changed.
    """
    options.check()
    _check_options(store, options)
    lengths = store.manifest["examples"]
    if str(seq_len) not in lengths:
        raise ValueError(
            f"seq_len is {seq_len}, but {store.directory} holds ready-made examples of "
            f"{' and '.join(lengths)} tokens: give --seq_len or config.phases one of these, or "
            "import others"
        )
    length = lengths[str(seq_len)]
    for key in ("max_predictions_per_seq", *SPLIT_ROWS):
        small_files.field(length, key, int, f"{store.directory / MANIFEST}: 'examples'")
    if max_predictions_per_seq != length["max_predictions_per_seq"]:
        raise ValueError(
            f"max_predictions_per_seq is {max_predictions_per_seq}, but the ready-made examples "
            f"of {seq_len} tokens in {store.directory} have {length['max_predictions_per_seq']}: "
            "give --max_predictions_per_seq or config.phases that number"
        )
    shape = RowShape(seq_len, max_predictions_per_seq, 1)
    directory = f"{FOLDER}/{seq_len}"
    name = SPLIT_ROWS[split_name]
    examples = sum(length[split] for split in SPLIT_ROWS)
    arrays = {
        field: open_array(
            store.directory, f"{directory}/{field}.npy", str(dtype), (examples, *dims)
        )
        for field, (dims, dtype) in field_arrays(shape, store.vocab_size).items()
    }
    return StoredExamples(
        # A memory map seen as a plain array: slicing np.memmap costs more than what it slices.
        arrays={field: np.asarray(array) for field, array in arrays.items()},
        split_rows=_split_rows(store, f"{directory}/{name}.npy", length[split_name], examples),
        shape=shape,
        options=options,
        vocab_size=store.vocab_size,
        special_ids=store.special_ids,
    )


def _split_rows(store: Store, name: str, size: int, examples: int) -> np.ndarray:
    """Open the numbers of a split's examples: int64[size], each below `examples`."""
    rows = np.asarray(open_array(store.directory, name, "int64", (size,)))
    if size and not (rows.min() >= 0 and rows.max() < examples):
        raise ValueError(
            f"{store.directory / name} has the row {rows.max()} of {examples} examples; "
            "copy the store again"
        )
    return rows


def _check_options(store: Store, options: PretrainOptions) -> None:
    for field in dataclasses.fields(PretrainOptions):
        value = getattr(options, field.name)
        if field.name not in _OPEN_OPTIONS and value != field.default:
            raise ValueError(
                f"config.data.{field.name} is {value!r}, but {store.directory} holds ready-made "
                f"examples, whose segments and masks are settled: leave it at {field.default!r}, "
                "or train from a store of text"
            )
