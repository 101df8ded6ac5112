"""Open a run's stores, and produce this process's rows of each global batch.

`Feed` is the loop's interface to its data: `StoreFeed` implements it for pre-training,
bert_jax/finetuning/feed.py for tasks. Only train_batches imports TensorFlow.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import ResolvedRun, StoreFacts
from bert_jax.config.model_schema import THETAS
from bert_jax.logging.console import Screen
from bert_jax.runtime.run_record import MIXTURE, PINNED, STORE_DIGEST, Provenance, list_settings
from data_pipeline import store as store_lib
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.main import find_python
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address
from data_pipeline.sampling import batches
from data_pipeline.sampling.batches import ExampleSource
from data_pipeline.sampling.mixture import MIXTURE_VERSION, MixedSource, chain, make_schedule
from data_pipeline.sampling.stream import open_examples
from data_pipeline.sampling.walks import WALKS_VERSION
from data_pipeline.spec.hashing import HASH_VERSION
from data_pipeline.spec.options import OPTIONS_OF_A_RUN, PretrainOptions
from data_pipeline.store import Store
from data_pipeline.store.cache import fetch_manifest, fetch_store

# Field -> shape in the global batch, and dtype.
BatchShape = dict[str, tuple[tuple[int, ...], type[np.generic]]]
HostBatch = dict[str, np.ndarray]


def find_shape(batch: HostBatch) -> BatchShape:
    """Find the shape and dtype of each field of a global batch."""
    return {name: (array.shape, array.dtype.type) for name, array in batch.items()}


@dataclasses.dataclass(frozen=True)
class StepRows:
    """Locate each row of a step's global batch in the streams and stores; B is its batch_size."""

    positions_B: np.ndarray  # int64, in the stream of the step's phase
    store_B: np.ndarray  # number of the store; 0 where there is one
    epoch_B: np.ndarray  # epoch of that store's stream, from 0
    index_B: np.ndarray  # number of the row or example within that epoch


class Feed(Protocol):
    """Produce the batches of a run as pure functions of phase and step."""

    @property
    def provenance(self) -> Provenance:
        """Identify the data, which a resumed run must not change."""

    def batch_shapes(self, index: int, first_step: int) -> Sequence[BatchShape]:
        """Return the distinct shapes of a phase's batches from the given step on."""

    def train_batches(
        self, index: int, first_step: int, rows: np.ndarray
    ) -> Generator[HostBatch, None, None]:
        """Yield the batches of phase `index` from `first_step` to the phase's end.

        Steps count from 0 within the phase. `rows`, int[n], are this process's row indices in the
        global batch; arrays have n rows.
        """

    def locate_step(self, step: int) -> StepRows:
        """Find the rows of a step, counted from 1 over all phases."""


@dataclasses.dataclass(frozen=True)
class RunPhase:
    """Hold a phase's counts, baselines and held-out batches, computed before its first step.

    `score` and `show` score and print its evaluations.
    """

    examples_per_row: float  # the mean over the rows of a batch
    per_step: dict[str, float]  # estimated counts (tokens, examples), named as in summary.json
    baseline: dict[str, float]  # scores without a network, named as in the records
    heldout_examples: int
    heldout_batches: Sequence[HostBatch]  # global batches, the same in every evaluation
    score: Callable[[Sequence[Any]], dict[str, float]]  # results of eval_step per batch -> scores
    show: Callable[[Screen, int, dict[str, float]], None]  # prints scores next to the baselines


BUILD_COMMAND = (
    "python -m data_pipeline.build --input='TEXTS/*.txt' --output=STORE "
    "--train_vocab=wordpiece --vocab_size=8192"
)


def open_store(options: PretrainOptions, screen: Screen | None = None) -> Store:
    """Open the only store that config.data names; see open_stores.

    Raises:
      Refused: there are several, or open_stores refuses.
    """
    if len(options.stores) > 1:
        raise Refused(
            f"config.data.store names {len(options.stores)} stores, but this command reads one: "
            f"give one of {', '.join(options.stores)}, with --store if the command has that flag"
        )
    return open_stores(options, screen)[0]


def open_stores(options: PretrainOptions, screen: Screen | None = None) -> tuple[Store, ...]:
    """Open the stores that config.data names, after copying those in a bucket once per host.

    The progress of a copy is shown on `screen`.

    Raises:
      Refused: config.data names no store (the message shows the command that builds one), or
        stores to mix have different vocabularies, equal contents or ready-made examples.
      OSError: the bucket cannot be read, or the copy cannot be written.
    """
    _check_named(options)
    with (screen or Screen(is_writer=False)).copying(options.store) as advance:
        stores = tuple(
            store_lib.open_store(fetch_store(address, options.data_cache, advance, _print_line))
            for address in options.stores
        )
    if len(stores) > 1:
        _check_mixable(stores)
    return stores


def read_facts(options: PretrainOptions) -> StoreFacts:
    """Read the facts that a config needs from its store's manifest; the data are not opened.

    Raises:
      Refused: config.data names no store; the message shows the command that builds one.
      OSError: the bucket cannot be read.
    """
    _check_named(options)
    address = options.stores[0].rstrip("/")  # all have one vocabulary
    if is_address(address):
        return describe_store(store_lib.parse_manifest(fetch_manifest(address), address))
    return describe_store(store_lib.read_manifest(pathlib.Path(address)))


def describe_store(manifest: Mapping[str, Any]) -> StoreFacts:
    """Return the facts that a config needs from the store with this manifest."""
    is_text = manifest.get("kind") != store_lib.EXAMPLES
    lengths = {} if is_text else manifest["examples"]
    slots = {int(length): given["max_predictions_per_seq"] for length, given in lengths.items()}
    return StoreFacts(manifest["vocabulary"]["size"], is_text, slots)


def _check_named(options: PretrainOptions) -> None:
    if not options.store:
        raise Refused(
            "config.data.store is empty; build a store with "
            f"`{BUILD_COMMAND}` and give it as --config.data.store=STORE"
        )


def _print_line(text: str) -> None:
    with LINE.hidden():
        print(text, flush=True)


def _check_mixable(stores: Sequence[Store]) -> None:
    first, digests = stores[0], dict[str, Store]()
    for store in stores:
        if store.kind != store_lib.TEXT:
            raise Refused(
                f"config.data.store names several stores, and {store.directory} holds ready-made "
                "examples; only stores of text can be mixed: rebuild it from its text"
            )
        ours, theirs = (each.manifest["vocabulary"] for each in (first, store))
        differing = [
            f"{name} {ours.get(name)!s:.12} and {theirs.get(name)!s:.12}"
            for name in PINNED
            if name != "file" and ours.get(name) != theirs.get(name)
        ]
        if differing:
            raise Refused(
                f"config.data.store mixes {first.directory} and {store.directory}, which have "
                f"different vocabularies ({', '.join(differing)}); build the second with "
                f"--vocab={first.vocab_path} and the flags of the first"
            )
        twin = digests.setdefault(store.digest, store)
        if twin is not store:
            raise Refused(
                f"config.data.store names {twin.directory} and {store.directory}, which are copies "
                "of each other; name one, with a larger share in config.data.store_weights"
            )


def join_digests(stores: Sequence[Store]) -> str:
    """Return the first 12 digits of each store's digest, with commas between, for run records."""
    return ",".join(store.digest[:12] for store in stores)


# Settings of a phase that decide the rows of its steps and their loss.
_FIXED_PHASE = (
    *("seq_len", "batch_size", "max_predictions_per_seq", "masked_lm_prob", "objective"),
    *THETAS,
)


def take_single_pass(options: PretrainOptions, store: Store) -> PretrainOptions:
    """Return the options for evaluation: unpacked rows, and a single pass over the split.

    Scores are then comparable between runs that pack or repeat training rows differently.
    """
    alone = dataclasses.replace(options, packed_examples=1)
    if store.kind != store_lib.TEXT:
        return alone
    return dataclasses.replace(alone, dupe_factor=1, new_masks_each_epoch=True)


class StoreFeed:
    """Produce pre-training batches from a store as pure functions of phase and step."""

    def __init__(
        self, stores: Sequence[Store], config: ResolvedRun, teacher: Mapping[str, Any] | None = None
    ) -> None:
        """Keep the stores, which share one vocabulary; open_stores makes them.

        `teacher` is the result of interop.teacher.identify_teacher.
        """
        self.stores = tuple(stores)
        self._teacher = dict(teacher or {})
        self.config = config
        self._sources: dict[tuple[int, str, int, int, float], ExampleSource] = {}
        self._mixtures: dict[int, MixedSource] = {}

    def weights(self, index: int) -> tuple[float, ...]:
        """Return each store's share of the rows of a phase."""
        tokens = [store.train.tokens for store in self.stores]
        return config_lib.weights_in_phase(self.config, index, tokens)

    def open_source(self, index: int) -> ExampleSource:
        """Open the training rows of a phase; several stores are mixed by the phase's weights."""
        if len(self.stores) == 1:
            return self.open_split(index, 0)
        if index not in self._mixtures:
            numbers = range(len(self.stores))
            sources = [self.open_split(index, number) for number in numbers]
            seq_len = self.config.phases[index].seq_len
            schedules = [
                (phase.steps * phase.batch_size, make_schedule(self.weights(number)))
                for number, phase in enumerate(self.config.phases)
                if phase.seq_len == seq_len
            ]
            own = make_schedule(self.weights(index)).weights_K
            self._mixtures[index] = MixedSource(sources, chain(schedules), own)
        return self._mixtures[index]

    def open_split(self, index: int, number: int, split: str = store_lib.TRAIN) -> ExampleSource:
        """Open the rows of one store's split, at a phase's sequence length.

        Evaluations use the same masking rate, and enough prediction slots for it, in every phase.
        Sources are cached, as phases may share them.
        """
        store = self.stores[number]
        phase = self.config.phases[index]
        options = config_lib.data_in_phase(self.config, index)
        slots = phase.max_predictions_per_seq
        if split != store_lib.TRAIN:
            train_rate = options.masked_lm_prob
            options = take_single_pass(config_lib.data_in_evaluations(self.config), store)
            if options.masked_lm_prob != train_rate:
                slots = config_lib.predictions_for(phase.seq_len, options.masked_lm_prob)
        kind = (number, split, phase.seq_len, slots, options.masked_lm_prob)
        if kind not in self._sources:
            sentences = store.train if split == store_lib.TRAIN else store.heldout
            self._sources[kind] = open_examples(store, sentences, options, phase.seq_len, slots)
        return self._sources[kind]

    def check(self) -> None:
        """Open the sources of all phases, to refuse an unsuitable store early."""
        for index in range(len(self.config.phases)):
            self.open_source(index)
            for number in range(len(self.stores)):
                self.open_split(index, number, store_lib.HELDOUT)

    @property
    def provenance(self) -> Provenance:
        """Identify the store and the options of sampling."""
        first = self.stores[0]
        vocabulary = first.manifest["vocabulary"]  # its file is already verified
        phases = {
            f"phases[{i}].{name}": getattr(phase, name)
            for i, phase in enumerate(self.config.phases)
            for name in _FIXED_PHASE
        }
        fixed = {
            "init": self.config.init,
            "init_layers": self.config.init_layers,
            "init_tile": self.config.init_tile,
            "objective": self.config.objective,
            **list_settings("data", self.config.data, OPTIONS_OF_A_RUN),
            **phases,
            "hash_version (of this bert_jax)": HASH_VERSION,
            "walks_version (of this bert_jax)": WALKS_VERSION,
            STORE_DIGEST: join_digests(self.stores),
        }
        if len(self.stores) > 1:
            fixed[MIXTURE] = MIXTURE_VERSION
            for i in range(len(self.config.phases)):
                fixed[f"phases[{i}].store_weights (of each store)"] = list(self.weights(i))
        if self._teacher:
            fixed |= self._teacher | list_settings("distill", self.config.distill)
        return Provenance(
            learns="pre-training",
            origins=[store.directory for store in self.stores],
            vocab_path=first.vocab_path,
            vocabulary={name: vocabulary[name] for name in PINNED if name in vocabulary},
            fixed=fixed,
            details={"store": {"digest": ",".join(store.digest for store in self.stores)}},
        )

    def advise_on_speed(self) -> str:
        """Return the command that measures the speed of the input pipeline."""
        store = shlex.quote(str(self.stores[0].directory))
        return (
            f"`{find_python()} -m data_pipeline.benchmark --store={store}` measures its rate here, "
            "which requires idle cores and a store on a local disk"
        )

    def batch_shapes(self, index: int, first_step: int) -> list[BatchShape]:
        """Return the one shape that a phase's batches have."""
        del first_step
        return [self.open_source(index).shape.arrays(self.config.phases[index].batch_size)]

    def train_batches(
        self, index: int, first_step: int, rows: np.ndarray
    ) -> Generator[HostBatch, None, None]:
        """Yield this process's rows of each batch of a phase; see Feed."""
        phase = self.config.phases[index]
        return batches.train_batches(
            self.open_source(index),
            batch_size=phase.batch_size,
            first_row=config_lib.first_row(self.config, index),
            first_step=first_step,
            last_step=phase.steps,
            rows=rows,
        )

    def locate_step(self, step: int) -> StepRows:
        """Find the rows of a step, counted from 1 over all phases."""
        index = config_lib.phase_of_step(self.config, step)
        batch_size = self.config.phases[index].batch_size
        (positions_B,) = batches.compute_positions(
            config_lib.first_row(self.config, index),
            batch_size,
            np.array([step - 1 - config_lib.phase_start(self.config, index)]),
            np.arange(batch_size),
        )
        source = self.open_source(index)
        return StepRows(positions_B, source.find_stores(positions_B), *source.locate(positions_B))

    def first_rows(self, index: int, most: int) -> HostBatch:
        """Return up to `most` rows from the start of epoch 0 of a phase's training split."""
        source = self.open_source(index)
        return source.rows(np.arange(min(most, source.rows_in_epoch(0))))

    def make_heldout_batches(self, index: int, number: int = 0) -> list[HostBatch]:
        """Return a store's fixed held-out batches, with a phase's row length and micro-batch size.

        config.eval.examples is divided equally among the stores.
        """
        phase = self.config.phases[index]
        return batches.make_heldout_batches(
            self.open_split(index, number, store_lib.HELDOUT),
            batch_size=phase.batch_size // phase.micro_batches,
            examples=max(1, self.config.eval.examples // len(self.stores)),
        )
