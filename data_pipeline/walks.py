"""The K walks of a split: what is known of each beforehand, and the walks, built when needed."""

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import tempfile
import threading
import time
from typing import Any

import numpy as np

from data_pipeline import hashing, small_files
from data_pipeline.chunks import Walk, walk_corpus, walk_rules
from data_pipeline.label_balance import balanced_random_share
from data_pipeline.options import PretrainOptions
from data_pipeline.packing import RowPlan, plan_rows
from data_pipeline.pairs import example_lengths
from data_pipeline.store import Split

SIDECAR_FOLDER = "walks"

# Raised when walks come out differently for the same corpus and settings.
WALKS_VERSION = 2
_PACKING = 11  # what a key is for, as in chunks.py and pairs.py
_MOST_ROWS = 1 << 48  # of a walk; more is damage
_BYTES_PER_EXAMPLE = 14
# All walks of a corpus stay in memory up to this size; of a larger one two, current and next.
_KEEP_ALL_BYTES = 1 << 28

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PlannedWalk:
    """A walk, and how its examples are put into rows."""

    walk: Walk
    plan: RowPlan | None  # None: each example has a row of its own

    @property
    def rows(self) -> int:
        return len(self.walk) if self.plan is None else self.plan.rows

    def examples_of(self, rows_B: np.ndarray) -> np.ndarray:
        """Numbers of the examples in each row, -1 where it has fewer: int64[B] -> int64[B,N]."""
        return rows_B[:, None] if self.plan is None else self.plan.examples_of(rows_B)


@dataclasses.dataclass(frozen=True)
class WalkFacts:
    """What is known of the K walks of a split before any is built."""

    random_share: float  # as in WalkRules
    examples_K: tuple[int, ...]
    rows_K: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Sidecar:
    """Where facts are kept, and the digest of the corpus that they are facts of."""

    folder: pathlib.Path
    corpus_digest: str


def walk_facts(
    split: Split, options: PretrainOptions, seq_len: int, sidecar: Sidecar | None
) -> WalkFacts:
    """The facts of the dupe_factor walks; found once, then read from the sidecar.

    The sidecar's file is named by a digest of all that the facts depend on. Where it cannot be
    written, or there is none, the walks are counted at each start.

    Raises:
      ValueError: a corpus that cannot be walked over.
    """
    if sidecar is None or sidecar.folder.is_symlink():  # such a folder is not the store's
        return _count(split, options, seq_len)
    path = sidecar.folder / f"{_digest(split, options, seq_len, sidecar.corpus_digest)}.json"
    facts = _read_sidecar(path, options.dupe_factor)
    if facts is None:
        facts = _count(split, options, seq_len)
        _write_sidecar(path, facts)
    return facts


def _count(split: Split, options: PretrainOptions, seq_len: int) -> WalkFacts:
    start = time.monotonic()
    share = 0.5
    if options.segments == "nsp" and not options.exact:
        share = balanced_random_share(split, walk_rules(options, seq_len, 0))
    examples, rows = [], []
    for number in range(options.dupe_factor):
        planned = _planned_walk(split, options, seq_len, number, share)
        examples.append(len(planned.walk))
        rows.append(planned.rows)
    log.info(
        "counted the examples of %d walks over split %s at %d tokens in %.1f s: %s",
        *(options.dupe_factor, split.name, seq_len, time.monotonic() - start, examples),
    )
    return WalkFacts(share, tuple(examples), tuple(rows))


def _planned_walk(
    split: Split, options: PretrainOptions, seq_len: int, number: int, random_share: float
) -> PlannedWalk:
    rules = walk_rules(options, seq_len, number, random_share)
    walk = walk_corpus(split, rules)
    if options.packed_examples == 1:
        return PlannedWalk(walk, None)
    key = hashing.subkey(rules.key, _PACKING)
    lengths_N = example_lengths(split, walk)
    return PlannedWalk(walk, plan_rows(lengths_N, key, seq_len, options.packed_examples))


def _digest(split: Split, options: PretrainOptions, seq_len: int, corpus_digest: str) -> str:
    """SHA-256 over all that the facts are a function of."""
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


def _read_sidecar(path: pathlib.Path, walks: int) -> WalkFacts | None:
    """The facts in a sidecar, None where there is none or it is damaged."""
    try:
        record = small_files.read_object(path, path.parent)
    except (OSError, ValueError):
        return None
    share = record.get("random_share")
    examples, rows = _counts(record.get("examples"), walks), _counts(record.get("rows"), walks)
    if examples is None or rows is None or type(share) is not float or not 0.0 <= share <= 1.0:
        return None
    return WalkFacts(share, examples, rows)


def _counts(value: Any, walks: int) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) != walks:
        return None
    if any(type(count) is not int or not 1 <= count < _MOST_ROWS for count in value):
        return None
    return tuple(value)


def _write_sidecar(path: pathlib.Path, facts: WalkFacts) -> None:
    """Write the facts in one step, so that nobody reads half; skipped in a read-only store."""
    record = {
        "random_share": facts.random_share,
        "examples": list(facts.examples_K),
        "rows": list(facts.rows_K),
    }
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".json")
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        pathlib.Path(temporary).unlink(missing_ok=True)


class WalkCache:
    """Hands out the walk of an epoch, and builds the next one in a thread before it is asked for.

    Safe to call from several threads. Walks of a small corpus are all kept, of a large one two.
    """

    def __init__(
        self, split: Split, options: PretrainOptions, seq_len: int, facts: WalkFacts
    ) -> None:
        self._split, self._options, self._seq_len = split, options, seq_len
        self._facts = facts
        self._keeps_all = sum(facts.examples_K) * _BYTES_PER_EXAMPLE <= _KEEP_ALL_BYTES
        self._lock = threading.Lock()
        self._walks: dict[int, PlannedWalk] = {}
        self._ahead: dict[int, threading.Thread] = {}

    def get(self, number: int) -> PlannedWalk:
        """Walk `number`, from memory if it is there, else built now.

        Raises:
          ValueError: the corpus is damaged, or not the one that was counted.
        """
        with self._lock:
            thread = self._ahead.pop(number, None)
        if thread is not None:
            thread.join()
        with self._lock:
            walk = self._walks.get(number)
            if walk is None:
                walk = self._walks[number] = self._build(number)
            self._drop_all_but(number)
        return walk

    def build_ahead(self, number: int) -> None:
        """Start building walk `number` in the background, unless it is there or under way."""
        with self._lock:
            if number in self._walks or number in self._ahead:
                return
            # A daemon: an interrupted run must not wait for a walk that nobody will read.
            thread = threading.Thread(
                target=self._build_in_background, args=(number,), name=f"walk-{number}", daemon=True
            )
            self._ahead[number] = thread
            thread.start()

    def _build_in_background(self, number: int) -> None:
        try:
            walk = self._build(number)
        except Exception:
            # Not lost: who needs this walk builds it again, and raises where somebody listens.
            return
        with self._lock:
            self._walks.setdefault(number, walk)

    def _drop_all_but(self, number: int) -> None:
        """Forget walks of a large corpus other than this one and the next."""
        if not self._keeps_all:
            kept = {number, (number + 1) % len(self._facts.rows_K)}
            self._walks = {key: walk for key, walk in self._walks.items() if key in kept}

    def _build(self, number: int) -> PlannedWalk:
        facts = self._facts
        planned = _planned_walk(
            self._split, self._options, self._seq_len, number, facts.random_share
        )
        found, expected = (
            (len(planned.walk), planned.rows),
            (facts.examples_K[number], facts.rows_K[number]),
        )
        if found != expected:
            raise ValueError(
                f"walk {number} over split {self._split.name} has {found[0]} examples in "
                f"{found[1]} rows, its sidecar says {expected[0]} in {expected[1]}; delete the "
                f"folder '{SIDECAR_FOLDER}' in the store"
            )
        return planned
