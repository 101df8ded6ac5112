"""Time masking alone, and the packing of rows: python -m benchmarks.sampler_parts STORE."""

import argparse
import os
import resource
import sys
import time

import numpy as np

from benchmarks.results import HELP, Measured, open_row, write_row
from data_pipeline.sampling.masking import mask_rows
from data_pipeline.sampling.packing import plan_rows
from data_pipeline.sampling.pairs import measure_examples
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec import hashing
from data_pipeline.spec.options import MASKING, PretrainOptions
from data_pipeline.store import Store, open_store

_SEQ_LENS_AND_SLOTS = ((128, 20), (512, 77))
_ROWS = 1024
_TIMES = 25


def main() -> None:
    """Measure on one core and print; processor time, since other programs may run there too."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sampler_parts",
        description="Times masks alone, and plans of packed rows with their fill, on one core.",
    )
    parser.add_argument("store", help="folder that python -m data_pipeline.build wrote")
    parser.add_argument(
        "--packed_examples", type=int, nargs="+", default=[1, 2, 4, 6, 8], help="most in a row"
    )
    parser.add_argument(
        "--plan_examples", type=int, default=25_000_000, help="examples of the plan that is timed"
    )
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    flags = parser.parse_args()
    row, fills = open_row(flags.record), []
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    store = open_store(flags.store)
    for seq_len, slots in _SEQ_LENS_AND_SLOTS:
        for masking in MASKING:
            _time_masks(store, masking, seq_len, slots)
        source = open_examples(store, store.train, PretrainOptions(), seq_len, slots)
        lengths = measure_examples(store.train, source.walks.get(0).walk)
        found = [_print_fill(lengths, seq_len, most) for most in flags.packed_examples]
        fills.append(f"{' / '.join(f'{100 * share:.1f}' for share in found)}%")
        many = np.random.default_rng(0).choice(lengths, flags.plan_examples)
        start = time.process_time()
        plan_rows(many, 1, seq_len, flags.packed_examples[-1])
        secs = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{seq_len:5} tokens, plan of {len(many):,}: {secs:.2f} s, peak {peak:.2f} GiB in all"
        )
    lengths_named = " / at ".join(str(seq_len) for seq_len, _ in _SEQ_LENS_AND_SLOTS)
    packed = " / ".join(map(str, flags.packed_examples))
    what = f"share of positions with a token at {lengths_named}, packed by {packed}"
    write_row(row, Measured(what=what, figure="; ".join(fills), runs="1, exact"))


def _time_masks(store: Store, masking: str, seq_len: int, slots: int) -> None:
    """Time the masking of unmasked rows, and print rows/s."""
    options = PretrainOptions(masking=masking)
    source = open_examples(store, store.train, options, seq_len, slots)
    made = source.rows(np.arange(_ROWS))
    ids, length = made["input_ids"], made["input_mask"].sum(axis=1)
    used = made["masked_lm_weights"] > 0
    ids[np.nonzero(used)[0], made["masked_lm_positions"][used]] = made["masked_lm_ids"][used]
    is_text = ~np.isin(ids, [source.special_ids[name] for name in ("pad", "cls", "sep")])
    keys = hashing.hash64(1, np.arange(_ROWS))
    secs = []
    for _ in range(_TIMES):
        rows = ids.copy()
        start = time.process_time()
        mask_rows(rows, is_text, length, keys, source.mask_rules)
        secs.append(time.process_time() - start)
    print(f"{seq_len:5} tokens, {masking} masks: {_ROWS / np.median(secs):,.0f} rows/s")


def _print_fill(lengths: np.ndarray, seq_len: int, most: int) -> float:
    """Print how full packed rows are: a whole epoch, whose share is returned, and windows."""
    rows = plan_rows(lengths, 1, seq_len, most).rows
    shuffled = np.random.default_rng(0).permutation(lengths)
    windows = np.split(shuffled, range(_ROWS, len(lengths), _ROWS))[:-1] or [shuffled]
    rows_of = [plan_rows(window, 1, seq_len, most).rows for window in windows]
    tokens, in_windows = (part.sum(dtype=np.int64) for part in (lengths, np.concatenate(windows)))
    print(
        f"{seq_len:5} tokens, {most} examples per row: {tokens / (rows * seq_len):.1%} of the "
        f"positions hold a token; packed by {_ROWS}: {in_windows / (sum(rows_of) * seq_len):.1%}, "
        f"{min(rows_of)} to {max(rows_of)} rows"
    )
    return float(tokens / (rows * seq_len))


if __name__ == "__main__":
    main()
