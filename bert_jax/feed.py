"""What a run reads: an opened store, and from it this process's rows of each global batch.

TensorFlow is needed by train_batches alone, and imported there by data_pipeline.pretrain.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Generator
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import config_check
from bert_jax.checkpoint_vocabulary import PINNED
from bert_jax.config import Config
from bert_jax.run_feed import BatchShape
from data_pipeline import pretrain
from data_pipeline import store as store_lib
from data_pipeline.example_source import ExampleSource
from data_pipeline.examples import open_examples
from data_pipeline.hashing import HASH_VERSION
from data_pipeline.interpreter import python
from data_pipeline.options import OPTIONS_OF_A_RUN, PretrainOptions
from data_pipeline.schema import RowShape
from data_pipeline.store import Split, Store
from data_pipeline.store_cache import Advance, cached_store
from data_pipeline.walks import WALKS_VERSION

STORE_DIGEST = "data.store (digest of its contents)"
BUILD_COMMAND = (
    "python -m data_pipeline.build --input='TEXTS/*.txt' --output=STORE "
    "--train_vocab=wordpiece --vocab_size=30522"
)


def open_store(
    options: PretrainOptions, advance: Advance = lambda done_bytes, total_bytes: None
) -> Store:
    """Open the store of a config.data; one in a bucket is first copied, once a host.

    `advance` is told the bytes copied so far and all there are.

    Raises:
      ValueError: there is none; the sentence shows the command that builds one.
      OSError: a bucket cannot be read, or the copy not written.
    """
    if not options.store:
        raise ValueError(
            "config.data.store is empty; build a store with "
            f"`{BUILD_COMMAND}` and give it as --config.data.store=STORE"
        )
    return store_lib.open_store(cached_store(options.store, options.data_cache, advance))


def short_digest(store: Store) -> str:
    """What a receipt keeps of a store's digest."""
    return store.digest[:12]


_FIXED_PHASE = ("seq_len", "batch_size", "max_predictions_per_seq")  # which rows a step sees


def single_pass(options: PretrainOptions, store: Store) -> PretrainOptions:
    """Options for an evaluation: one example a row, and of one pass over the split.

    Held-out figures compare whatever training packs, and however often it draws masks.
    """
    alone = dataclasses.replace(options, packed_examples=1)
    if store.kind != store_lib.TEXT:
        return alone
    return dataclasses.replace(alone, dupe_factor=1, new_masks_each_epoch=True)


def _fixed_options(options: PretrainOptions) -> dict[str, Any]:
    return {
        f"data.{name}": value
        for name, value in dataclasses.asdict(options).items()
        if name not in OPTIONS_OF_A_RUN
    }


def _slots(store: Store) -> dict[int, int]:
    """Return the predictions of a row of ready-made examples, by its tokens; {} of text."""
    if store.kind == store_lib.TEXT:
        return {}
    lengths = store.manifest["examples"].items()
    return {int(seq_len): length["max_predictions_per_seq"] for seq_len, length in lengths}


class Feed:
    """Batches of a run on a store, as pure functions of phase and step."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store = store
        self.config = config_lib.with_predictions(config, _slots(store))
        self._sources: dict[tuple[str, int, int], ExampleSource] = {}

    def _source(self, split: Split, index: int) -> ExampleSource:
        """The source of a split at a phase's length, opened once: phases may share it."""
        phase = self.config.phases[index]
        kind = (split.name, phase.seq_len, phase.max_predictions_per_seq)
        if kind not in self._sources:
            self._sources[kind] = open_examples(
                self.store,
                split,
                self._options(split),
                seq_len=phase.seq_len,
                max_predictions_per_seq=phase.max_predictions_per_seq,
            )
        return self._sources[kind]

    def _options(self, split: Split) -> PretrainOptions:
        is_train = split.name == store_lib.TRAIN
        return self.config.data if is_train else single_pass(self.config.data, self.store)

    def check(self) -> None:
        """Open every phase's source once, so that a store unfit for it is refused at the start."""
        if self.store.kind == store_lib.TEXT:
            config_check.check_predictions(self.config)
        for index in range(len(self.config.phases)):
            self._source(self.store.train, index)
            self._source(self.store.heldout, index)

    @property
    def learns(self) -> str:
        """What a run on it does."""
        return "pre-training"

    @property
    def origin(self) -> pathlib.Path:
        """The store's folder."""
        return self.store.directory

    @property
    def vocab_path(self) -> pathlib.Path:
        """The file of the store's vocabulary."""
        return self.store.vocab_path

    def vocabulary_record(self) -> dict[str, Any]:
        """Return the keys of the store's manifest that pin its vocabulary; its file was checked."""
        vocabulary = self.store.manifest["vocabulary"]
        return {name: vocabulary[name] for name in PINNED}

    def fixed(self) -> dict[str, Any]:
        """What a run that goes on must keep: how rows are drawn, from which store."""
        phases = {
            f"phases[{i}].{name}": getattr(phase, name)
            for i, phase in enumerate(self.config.phases)
            for name in _FIXED_PHASE
        }
        return {
            "init": self.config.init,
            "objective": self.config.objective,
            **_fixed_options(self.config.data),
            **phases,
            "hash_version (of this bert_jax)": HASH_VERSION,
            "walks_version (of this bert_jax)": WALKS_VERSION,
            STORE_DIGEST: short_digest(self.store),
        }

    def fixed_by_default(self) -> dict[str, Any]:
        """The options that a receipt may be older than."""
        return {"init": ""} | _fixed_options(PretrainOptions())

    def in_a_receipt(self) -> dict[str, Any]:
        """The store."""
        return {"store": {"digest": self.store.digest}}

    def advice(self) -> str:
        """How to find out what the input pipeline can give."""
        store = shlex.quote(str(self.store.directory))
        return (
            f"`{python()} -m data_pipeline.benchmark {store}` measures what it can give here; it "
            "wants idle cores and a store on a local disk"
        )

    def mean_epoch_rows(self, index: int) -> float:
        """Rows in a pass over the training split at a phase's length; passes differ a little."""
        return self._source(self.store.train, index).mean_rows_per_epoch

    def mean_examples_in_row(self, index: int) -> float:
        """Examples in a row of a phase's batches; 1 where rows are not packed."""
        return self._source(self.store.train, index).mean_examples_in_row

    def row_shape(self, index: int) -> RowShape:
        """What a row of a phase's batches holds at most."""
        return self._source(self.store.train, index).shape

    def batch_shapes(self, index: int, first_step: int) -> list[BatchShape]:
        """The one shape that a phase's batches have."""
        del first_step
        return [self.row_shape(index).arrays(self.config.phases[index].batch_size)]

    def train_batches(
        self, index: int, first_step: int, rows: np.ndarray
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Rows of the batches of a phase from a step, counted within the phase, to its last."""
        phase = self.config.phases[index]
        return pretrain.train_batches(
            self._source(self.store.train, index),
            batch_size=phase.batch_size,
            first_row=config_lib.first_row(self.config, index),
            first_step=first_step,
            last_step=phase.steps,
            rows=rows,
        )

    def positions(self, step: int) -> np.ndarray:
        """The stream's positions in the global batch of a step, numbered from 1 over all phases.

        Shapes: int64[B].
        """
        index = config_lib.phase_of_step(self.config, step)
        batch_size = self.config.phases[index].batch_size
        before = step - 1 - config_lib.phase_start(self.config, index)
        first = config_lib.first_row(self.config, index) + before * batch_size
        return first + np.arange(batch_size)

    def located(self, index: int, positions_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch of each position of a phase's stream, and the row's number within it."""
        return self._source(self.store.train, index).locate(positions_B)

    def rows(self, index: int, positions_B: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at these positions of a phase's training stream."""
        return self._source(self.store.train, index).rows(positions_B)

    def first_rows(self, index: int, most: int) -> dict[str, np.ndarray]:
        """Rows of the first epoch of a phase's training split, `most` at most."""
        source = self._source(self.store.train, index)
        return source.rows(np.arange(min(most, source.rows_in_epoch(0))))

    def heldout_batches(self, index: int) -> list[dict[str, np.ndarray]]:
        """The fixed held-out batches of a phase's length, whole, as large as a micro-batch."""
        phase = self.config.phases[index]
        return pretrain.heldout_batches(
            self._source(self.store.heldout, index),
            batch_size=phase.batch_size // phase.micro_batches,
            examples=self.config.eval.examples,
        )
