"""Read rows from a store of ready-made examples, by their position in a stream.

Every epoch has each example of the split once, in a new order.
"""

import dataclasses

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.sampling.batches import ExampleSource
from data_pipeline.spec import hashing
from data_pipeline.spec.hashing import Purpose
from data_pipeline.spec.options import OPTIONS_OF_A_RUN, PretrainOptions
from data_pipeline.spec.schema import RowShape, describe_stored_fields
from data_pipeline.store import EXAMPLES, Store, open_array
from data_pipeline.store.reader import SPLIT_ROWS

# Settings that a run may change for a store of examples, whose records fix the others. `segments`
# says what kind of examples they are.
_OPEN_OPTIONS = (*OPTIONS_OF_A_RUN, "random_seed", "segments")


@dataclasses.dataclass(frozen=True)
class StoredExamples(ExampleSource):
    """Stream the examples of one split at one sequence length. Made by open_stored_examples."""

    shape: RowShape
    options: PretrainOptions
    special_ids: dict[str, int]
    arrays: dict[str, np.ndarray]  # keys: spec.schema.TFRECORD_FIELDS; [N, ...]
    split_rows: np.ndarray  # int64, numbers of the split's rows among the N
    vocab_size: int

    @property
    def mean_rows_per_epoch(self) -> float:
        return float(len(self.split_rows))

    @property
    def mean_examples_in_row(self) -> float:
        return 1.0  # the format has no packed rows

    def rows_in_epoch(self, epoch: int) -> int:
        return len(self.split_rows)  # every epoch has each example once

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(np.asarray(positions, np.int64), len(self.split_rows))

    def make_rows_of_part(self, part: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
        key = hashing.derive_key(
            self.options.random_seed, Purpose.STORED_ORDER, self.shape.seq_len, part
        )
        row_B = self.split_rows[hashing.permute(key, index_B, len(self.split_rows))]
        batch = {
            name: self.arrays[name][row_B].astype(field.dtype)
            for name, field in self.shape.fields.items()
            if name in self.arrays
        }
        has_pairs = self.options.has_next_sentences
        batch["next_sentence_weights"] = np.full(len(row_B), has_pairs, np.float32)
        if not has_pairs and batch["segment_ids"].any():
            raise Refused(
                f"config.data.segments is {self.options.segments!r}, and ready-made examples of "
                "the store have two segments; leave it at 'nsp' ('sop' where label 1 means "
                "swapped), import examples without pairs, or train from a store of text"
            )
        for name in ("input_ids", "masked_lm_ids"):
            if batch[name].max() >= self.vocab_size:
                raise Refused(
                    f"{name} has the id {batch[name].max()}, beyond the {self.vocab_size} pieces "
                    "of the store's vocabulary; the store is damaged: copy it again, or import the "
                    "records again"
                )
        return batch


def open_stored_examples(
    store: Store,
    split_name: str,
    options: PretrainOptions,
    seq_len: int,
    max_predictions_per_seq: int,
) -> StoredExamples:
    """Open the stream of a split of a store that holds ready-made examples.

    Raises:
      Refused: the store has no examples of this seq_len or number of slots, a setting differs
        from the fixed one of the examples, or an array is missing or damaged.
    """
    options.check()
    _check_options(store, options)
    slots = {
        n: length["max_predictions_per_seq"] for n, length in store.manifest["examples"].items()
    }
    if slots.get(str(seq_len)) != max_predictions_per_seq:
        kinds = " and ".join(f"{n} tokens with {most} predictions" for n, most in slots.items())
        raise Refused(
            f"seq_len is {seq_len} and max_predictions_per_seq is {max_predictions_per_seq}, but "
            f"{store.directory} holds ready-made examples of {kinds}: set --seq_len and "
            "--max_predictions_per_seq, or config.phases, to such a pair, or import others"
        )
    length = store.manifest["examples"][str(seq_len)]
    shape = RowShape(seq_len, max_predictions_per_seq, 1)
    examples = sum(length[split] for split in SPLIT_ROWS)

    def open_file(name: str, dtype: str, dims: tuple[int, ...]) -> np.ndarray:
        return open_array(store.directory, f"{EXAMPLES}/{seq_len}/{name}.npy", dtype, dims)

    split_rows = open_file(SPLIT_ROWS[split_name], "int64", (length[split_name],))
    wrong = split_rows[(split_rows < 0) | (split_rows >= examples)]
    if len(wrong):
        raise Refused(
            f"{store.directory}/{EXAMPLES}/{seq_len}/{SPLIT_ROWS[split_name]}.npy has the row "
            f"{wrong[0]} of {examples} examples; copy the store again"
        )
    return StoredExamples(
        arrays={
            name: open_file(name, str(dtype), (examples, *dims))
            for name, (dims, dtype) in describe_stored_fields(shape, store.vocab_size).items()
        },
        split_rows=split_rows,
        shape=shape,
        options=options,
        vocab_size=store.vocab_size,
        special_ids=store.special_ids,
    )


def _check_options(store: Store, options: PretrainOptions) -> None:
    for field in dataclasses.fields(PretrainOptions):
        value = getattr(options, field.name)
        if field.name not in _OPEN_OPTIONS and value != field.default:
            raise Refused(
                f"config.data.{field.name} is {value!r}, but {store.directory} holds ready-made "
                f"examples, whose segments and masks are fixed: leave it at {field.default!r}, "
                "or train from a store of text"
            )
