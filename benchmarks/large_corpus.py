"""Time walks over a corpus of 100 million sentences, made up: python -m benchmarks.large_corpus.

Sentences have lengths as in English (log-normal, 24 tokens on average), documents 25 sentences on
average. The ids are all alike: a walk looks at lengths alone. Seconds are processor time on one
core; memory is the most that the process held, pages of the mapped files included.
"""

import argparse
import os
import pathlib
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from data_pipeline.sampling.stream import VocabInfo, open_source
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import Split

SPECIAL_IDS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
VOCAB_SIZE = 30_522
BLOCK = 1 << 22


def main() -> None:
    """Print a line for each sequence length, packed and not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_corpus")
    parser.add_argument("--sentences", type=int, default=100_000_000)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    with tempfile.TemporaryDirectory() as folder:
        split = synthetic_split(given.sentences, pathlib.Path(folder))
        print(
            f"{split.sentences:,} sentences, {split.tokens:,} tokens, {split.documents:,} documents"
        )
        for seq_len in (128, 512):
            for packed in (1, 8):
                measure(split, seq_len, packed)


def synthetic_split(sentences: int, folder: pathlib.Path) -> Split:
    """Arrays on disk, mapped."""
    rng = np.random.default_rng(0)
    lengths = np.empty(sentences, np.int16)
    for start in range(0, sentences, BLOCK):
        part = lengths[start : start + BLOCK]
        part[:] = np.clip(rng.lognormal(3.0, 0.6, len(part)), 1, 400)
    arrays = {
        "sentence_offsets": np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        "document_offsets": np.concatenate(
            [[0], np.unique(rng.integers(1, sentences, sentences // 25)), [sentences]]
        ).astype(np.int64),
        "token_counts": np.ones(VOCAB_SIZE, np.int64),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    tokens = int(arrays["sentence_offsets"][-1])
    token_ids = np.lib.format.open_memmap(
        folder / "token_ids.npy", mode="w+", dtype=np.uint16, shape=(tokens,)
    )
    token_ids.flush()  # a file of zeros that takes no room
    mapped = {
        name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
        for name in ("token_ids", *arrays)
    }
    return Split("train", **mapped)


def measure(split: Split, seq_len: int, packed: int) -> None:
    """Count one walk, then make a batch of step 0 and of step 1,000,000 in a source of its own."""
    options = PretrainOptions(dupe_factor=1, packed_examples=packed)
    pieces = VocabInfo(VOCAB_SIZE, SPECIAL_IDS, split.token_counts)
    slots = round(0.15 * seq_len)
    count_secs, source = timed(lambda: open_source(split, pieces, options, seq_len, slots))
    rows_B = np.arange(256)
    first_secs, _ = timed(lambda: source.rows(rows_B))
    far_secs, _ = timed(lambda: source.rows(256 * 10**6 + rows_B))
    next_secs, _ = timed(lambda: source.rows(256 * (10**6 + 1) + rows_B))
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"seq_len {seq_len}, {packed} per row: counted in {count_secs:.1f} s "
        f"({source.facts.examples[0]:,} examples, {source.facts.rows[0]:,} rows); first batch "
        f"{first_secs:.1f} s, of step 1,000,000 {far_secs:.3f} s, the next {next_secs:.3f} s; "
        f"{most_bytes / 1e9:.2f} GB so far"
    )


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, and what it gave."""
    start = time.process_time()
    made = call()
    return time.process_time() - start, made


if __name__ == "__main__":
    main()
