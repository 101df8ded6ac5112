"""The K walks of a split: how many pairs each has, and the walks themselves, built when needed."""

import hashlib
import json
import logging
import os
import pathlib
import tempfile
import threading
import time

import numpy as np

from data_pipeline import hashing
from data_pipeline.options import PretrainOptions
from data_pipeline.pairs import Walk, walk_pairs, walk_rules
from data_pipeline.store import Split

SIDECAR_FOLDER = "walks"

_BYTES_PER_PAIR = 10
# All walks of a corpus stay in memory up to this size; of a larger one two, current and next.
_KEEP_ALL_BYTES = 1 << 28
_DIGEST_CHUNK = 1 << 20

log = logging.getLogger(__name__)


def pair_counts(
    split: Split, options: PretrainOptions, seq_len: int, sidecar_dir: pathlib.Path | None
) -> tuple[int, ...]:
    """How many pairs each of the dupe_factor walks has; counted once, then read from a sidecar.

    The sidecar is `sidecar_dir/walks/<digest>.json`, where the digest covers all that the counts
    depend on. Where it cannot be written the walks are counted at each start.
    """
    if sidecar_dir is None:
        return _count_pairs(split, options, seq_len)
    path = sidecar_dir / SIDECAR_FOLDER / f"{_digest(split, options, seq_len)}.json"
    counts = _read_sidecar(path, options.dupe_factor)
    if counts is None:
        counts = _count_pairs(split, options, seq_len)
        _write_sidecar(path, counts)
    return counts


def _count_pairs(split: Split, options: PretrainOptions, seq_len: int) -> tuple[int, ...]:
    start = time.monotonic()
    counts = tuple(
        len(walk_pairs(split, walk_rules(options, seq_len, walk)))
        for walk in range(options.dupe_factor)
    )
    log.info(
        "counted the pairs of %d walks over split %s at %d tokens in %.1f s: %s",
        *(options.dupe_factor, split.name, seq_len, time.monotonic() - start, counts),
    )
    return counts


def _digest(split: Split, options: PretrainOptions, seq_len: int) -> str:
    """SHA-256 over all that the counts are a function of."""
    facts = {
        "hash_version": hashing.HASH_VERSION,
        "random_seed": options.random_seed,
        "short_seq_prob": options.short_seq_prob,
        "dupe_factor": options.dupe_factor,
        "exact": options.exact,
        "seq_len": seq_len,
        "sentences": split.sentences,
        "documents": split.documents,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for offsets in (split.sentence_offsets, split.document_offsets):
        for start in range(0, len(offsets), _DIGEST_CHUNK):
            digest.update(np.ascontiguousarray(offsets[start : start + _DIGEST_CHUNK], "<i8").data)
    return digest.hexdigest()


def _read_sidecar(path: pathlib.Path, walks: int) -> tuple[int, ...] | None:
    """The counts in a sidecar, None where there is none or it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    counts = record.get("pairs") if isinstance(record, dict) else None
    if not isinstance(counts, list) or len(counts) != walks:
        return None
    if any(type(count) is not int or count < 1 for count in counts):
        return None
    return tuple(counts)


def _write_sidecar(path: pathlib.Path, counts: tuple[int, ...]) -> None:
    """Write the counts in one step, so that nobody reads half; skipped in a read-only store."""
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".json")
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"pairs": list(counts)}, file)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        pathlib.Path(temporary).unlink(missing_ok=True)


class WalkCache:
    """Hands out the walk of an epoch, and builds the next one in a thread before it is asked for.

    Safe to call from several threads. Walks of a small corpus are all kept, of a large one two.
    """

    def __init__(
        self, split: Split, options: PretrainOptions, seq_len: int, counts: tuple[int, ...]
    ) -> None:
        self._split, self._options, self._seq_len = split, options, seq_len
        self._counts = counts
        self._keeps_all = sum(counts) * _BYTES_PER_PAIR <= _KEEP_ALL_BYTES
        self._lock = threading.Lock()
        self._walks: dict[int, Walk] = {}
        self._ahead: dict[int, threading.Thread] = {}

    def get(self, number: int) -> Walk:
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
        except ValueError:
            # The call that needs this walk builds it again and raises where somebody listens.
            return
        with self._lock:
            self._walks.setdefault(number, walk)

    def _drop_all_but(self, number: int) -> None:
        """Forget walks of a large corpus other than this one and the next."""
        if not self._keeps_all:
            kept = {number, (number + 1) % len(self._counts)}
            self._walks = {key: walk for key, walk in self._walks.items() if key in kept}

    def _build(self, number: int) -> Walk:
        walk = walk_pairs(self._split, walk_rules(self._options, self._seq_len, number))
        if len(walk) != self._counts[number]:
            raise ValueError(
                f"walk {number} over split {self._split.name} has {len(walk)} pairs, its sidecar "
                f"says {self._counts[number]}; delete the folder '{SIDECAR_FOLDER}' in the store"
            )
        return walk
