"""Count the examples and rows in each of a split's dupe_factor walks, once.

A walk itself is built when an epoch needs it.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import threading
import time
from concurrent.futures import Future
from typing import Annotated

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.io.atomic import keep_json
from data_pipeline.io.small_files import MAX_COUNT, read_record
from data_pipeline.sampling.packing import RowPlan, plan_rows
from data_pipeline.sampling.pairs import measure_examples
from data_pipeline.sampling.walk import Walk, WalkRules, make_rules, walk_block, walk_corpus
from data_pipeline.spec import hashing
from data_pipeline.spec.hashing import Purpose
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import WALKS, Split, Store

# Each of _ROUNDS rounds of balance_random_share walks about _SENTENCES sentences at _PLACES places,
# or a small corpus up to _WALKS times.
_SENTENCES, _PLACES, _ROUNDS, _WALKS = 1 << 20, 16, 6, 8


def balance_random_share(split: Split, rules: WalkRules) -> float:
    """Compute the share of random B among multi-sentence chunks so that half of all B are random.

    The B of a one-sentence chunk is always random, so the others must be random less than half of
    the time. The share is refined by repeated walks over samples of the corpus.
    Returns 0 if more than half of the chunks have one sentence.
    """
    share = 0.5
    documents_D = _sample_documents(split)
    walks = min(_WALKS, max(1, _SENTENCES // split.sentences))
    keys = [hashing.derive_key(rules.key, Purpose.TRIAL_WALK, number) for number in range(walks)]
    for _ in range(_ROUNDS):
        parts = [
            walk_block(
                split,
                dataclasses.replace(rules, random_share=share, key=key),
                np.asarray(split.document_offsets[start : stop + 1]),
            )
            for start, stop in documents_D
            for key in keys
        ]
        sentences_N = np.concatenate([sentences for _, _, sentences in parts])
        chunks, single = len(sentences_N), int(np.count_nonzero(sentences_N == 1))
        share = max(0.0, (0.5 * chunks - single) / max(chunks - single, 1))
    return share


def _sample_documents(split: Split) -> list[tuple[int, int]]:
    """Return document ranges with about _SENTENCES sentences in total, or the whole small split."""
    offsets_D = split.document_offsets
    if split.sentences <= _SENTENCES:
        return [(0, split.documents)]
    size = _SENTENCES // _PLACES
    starts = np.linspace(0, split.sentences - size, _PLACES).astype(np.int64)
    ranges = []
    for first_sentence in starts:
        start = int(np.searchsorted(offsets_D, first_sentence, side="right")) - 1
        stop = int(np.searchsorted(offsets_D, first_sentence + size, side="right")) - 1
        ranges.append((start, max(stop, start + 1)))
    return ranges


# Increment it when the same corpus and settings give other walks.
WALKS_VERSION = 2
_BYTES_PER_EXAMPLE = 14
# Up to this size all walks of a corpus stay in memory; above it, only the current and the next.
_KEEP_ALL_BYTES = 1 << 28

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PlannedWalk:
    """Hold a walk, and the plan of its rows."""

    walk: Walk
    plan: RowPlan | None  # None: one example in a row

    @property
    def rows(self) -> int:
        return len(self.walk) if self.plan is None else self.plan.rows

    def find_examples(self, rows_B: np.ndarray) -> np.ndarray:
        """Return the examples of each row, -1 in unused places: int64[B] -> int64[B,N]."""
        return rows_B[:, None] if self.plan is None else self.plan.find_examples(rows_B)


@dataclasses.dataclass(frozen=True)
class WalkFacts:
    """Hold the number of examples and rows of each walk, and random_share.

    They are saved as JSON in the store, so later starts need not build all walks to count them.
    """

    random_share: Annotated[float, 0.0, 1.0]  # WalkRules.random_share
    examples: tuple[Annotated[int, 1, MAX_COUNT], ...]  # each walk's
    rows: tuple[Annotated[int, 1, MAX_COUNT], ...]


def find_walk_facts(
    split: Split, options: PretrainOptions, seq_len: int, store: Store | None
) -> WalkFacts:
    """Return the facts of the dupe_factor walks, counted once and kept in a file in the store.

    The file name is a digest of all that the facts depend on. Without a store, or if it cannot be
    written, the walks are counted at each start.

    Raises:
      Refused: the corpus has a document without sentences or a sentence without tokens.
    """
    if store is None or (store.directory / WALKS).is_symlink():  # a link may lead out of the store
        return _count_walks(split, options, seq_len)
    path = store.directory / WALKS / f"{_digest_inputs(split, options, seq_len, store.digest)}.json"
    with contextlib.suppress(OSError, ValueError):  # it is missing or damaged
        facts = read_record(path, WalkFacts, path.parent)
        if len(facts.examples) == len(facts.rows) == options.dupe_factor:
            return facts
    facts = _count_walks(split, options, seq_len)
    keep_json(path, dataclasses.asdict(facts))
    return facts


def _count_walks(split: Split, options: PretrainOptions, seq_len: int) -> WalkFacts:
    start = time.monotonic()
    share = 0.5
    if options.segments == "nsp" and not options.exact:
        share = balance_random_share(split, make_rules(options, seq_len, 0, share))
    examples, rows = [], []
    for number in range(options.dupe_factor):
        planned = _plan_walk(split, options, seq_len, number, share)
        examples.append(len(planned.walk))
        rows.append(planned.rows)
    log.info(
        "counted the examples of %d walks over split %s at %d tokens in %.1f s: %s",
        *(options.dupe_factor, split.name, seq_len, time.monotonic() - start, examples),
    )
    return WalkFacts(share, tuple(examples), tuple(rows))


def _plan_walk(
    split: Split, options: PretrainOptions, seq_len: int, number: int, random_share: float
) -> PlannedWalk:
    rules = make_rules(options, seq_len, number, random_share)
    walk = walk_corpus(split, rules)
    if options.packed_examples == 1:
        return PlannedWalk(walk, None)
    key = hashing.derive_key(rules.key, Purpose.PACKED_ROWS)
    lengths_N = measure_examples(split, walk)
    return PlannedWalk(walk, plan_rows(lengths_N, key, seq_len, options.packed_examples))


def _digest_inputs(split: Split, options: PretrainOptions, seq_len: int, corpus_digest: str) -> str:
    """Return the SHA-256 of everything that the facts depend on."""
    depends_on = {
        "versions": [WALKS_VERSION, hashing.HASH_VERSION],
        "corpus": corpus_digest,
        "split": split.name,
        "sizes": [split.documents, split.sentences, split.tokens],
        "seq_len": seq_len,
        "random_seed": options.random_seed,
        "segments": options.segments,
        "short_seq_prob": options.short_seq_prob,
        "dupe_factor": options.dupe_factor,
        "exact": options.exact,
        "packed_examples": options.packed_examples,
    }
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


class WalkCache:
    """Build the walks of a split in threads, ahead of their use, and keep them in memory.

    Thread-safe. Keeps all walks of a small corpus, and two walks of a large one.
    """

    def __init__(
        self, split: Split, options: PretrainOptions, seq_len: int, facts: WalkFacts
    ) -> None:
        self._split, self._options, self._seq_len = split, options, seq_len
        self._facts = facts
        self._keeps_all = sum(facts.examples) * _BYTES_PER_EXAMPLE <= _KEEP_ALL_BYTES
        self._lock = threading.Lock()
        self._walks: dict[int, Future[PlannedWalk]] = {}

    def get(self, number: int) -> PlannedWalk:
        """Return walk `number`, after waiting for it if need be.

        Raises:
          Refused: the corpus is damaged, or differs from the counted one.
        """
        walk = self.build_ahead(number)
        if not self._keeps_all:  # this walk and the next remain
            kept = {number, (number + 1) % len(self._facts.rows)}
            with self._lock:
                self._walks = {key: self._walks[key] for key in kept & self._walks.keys()}
        return walk.result()

    def build_ahead(self, number: int) -> Future[PlannedWalk]:
        """Start to build walk `number` in the background, unless it is in memory or under way."""
        with self._lock:
            if number not in self._walks:
                future = Future[PlannedWalk]()
                # A daemon: an interrupted run must not wait for a walk that nobody will read.
                threading.Thread(
                    target=self._build_into, args=(future, number), daemon=True
                ).start()
                self._walks[number] = future
            return self._walks[number]

    def _build_into(self, future: Future[PlannedWalk], number: int) -> None:
        try:
            future.set_result(self._build(number))
        except Exception as error:  # raised in `get`; the next call builds the walk again
            with self._lock:
                if self._walks.get(number) is future:
                    del self._walks[number]
            future.set_exception(error)

    def _build(self, number: int) -> PlannedWalk:
        facts = self._facts
        planned = _plan_walk(self._split, self._options, self._seq_len, number, facts.random_share)
        examples, rows = facts.examples[number], facts.rows[number]
        if (len(planned.walk), planned.rows) != (examples, rows):
            raise Refused(
                f"walk {number} over split {self._split.name} has {len(planned.walk)} examples in "
                f"{planned.rows} rows, its sidecar says {examples} in {rows}; delete the folder "
                f"'{WALKS}' in the store"
            )
        return planned
