"""Price the attention kernels by the TPU compiler: python -m benchmarks.kernel_price --help.

Compiles forward and backward in a small program for a TPU slice, has libtpu dump the final
schedule, and counts bundles of instructions. A core issues one bundle per cycle unless it stalls; a
step of the grid is a row of the batch, for flash attention a tile of a row. The cycles of a row are
therefore the compiler's estimate, not a measurement. Bundles in a loop count once per iteration;
the loop over chunks of keys is counted for a row with one example, where no chunk is skipped.
Waiting for HBM and starting a step are left out. With --update the cycles go into
bert_jax/planning/kernel_prices.json, where bert_jax.plan finds them.

With --store=STORE --packed_examples=1,8 it also prints the mean cycles of that store's packed rows,
in which flash attention skips chunks of keys.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np

from benchmarks.results import HELP, Measured, open_row, write_row
from bert_jax.model.attention import flash
from bert_jax.model.attention.flash_body import Tile
from bert_jax.planning.chip_prices import KERNEL_PRICES, NAMES
from bert_jax.runtime.code_version import package_versions
from data_pipeline.sampling.packing import plan_rows
from data_pipeline.sampling.pairs import measure_examples
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store

DIRECTIONS = ("forward", "backward")
# Cores per device; they share the rows of its batch.
CORES = {"v4": 2, "v5e": 1, "v5p": 2, "v6e": 1, "tpu7x": 1}
KEYS = ("chip", "seq_len", "heads", "head_width", "has_dropout", "kernel", "window")
Price = dict[str, Any]  # KEYS, forward_cycles and backward_cycles


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Hold the compiler's final schedule of one kernel."""

    text: str
    steps: int  # grid steps per row
    chunks: int  # chunks of keys per block of queries, in a row that is one example
    slots: dict[str, float]  # kind of instruction -> share of its slots that are used

    def count_cycles(self, share: float = 1.0) -> int:
        """Count the cycles of a row in which this share of the chunks of keys is not skipped."""
        return count_cycles(self.text, self.steps, self.chunks * share)[1]


def main() -> None:
    """Price the kernels asked for, one compile after another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_price")
    parser.add_argument("--topology", default="v5e:4x4", help="of v4 to tpu7x, one or several")
    parser.add_argument("--seq_len", default="128", help="128 to 512; of flash, from 128 to 8192")
    parser.add_argument("--heads", default="12", help="of one device, such as 12,16")
    parser.add_argument("--head_width", default="64", help="of 64 and 128")
    parser.add_argument("--dropout_rate", default="0.1", help="such as 0,0.1")
    parser.add_argument("--kernel", default="attention", help="attention, or flash")
    parser.add_argument("--window", default="0", help="of flash, such as 0,128; 0 for none")
    parser.add_argument("--store", help="of flash without a window: price its packed rows as well")
    parser.add_argument("--packed_examples", default="8", help="most in a row, such as 1,8")
    parser.add_argument("--segments", default="nsp", help="as config.data.segments")
    parser.add_argument("--short_seq_prob", default="0.1", help="as config.data.short_seq_prob")
    parser.add_argument("--json_out", help="a file for the prices")
    parser.add_argument("--update", action="store_true", help=f"put them into {KERNEL_PRICES.name}")
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    given = parser.parse_args()
    row, lines = open_row(given.record), []
    if importlib.util.find_spec("libtpu") is None:
        parser.error("this needs the TPU compiler, which is not installed: pip install libtpu")
    lists = (given.topology, given.seq_len, given.heads, given.head_width, given.dropout_rate)
    lists = (*lists, given.kernel, given.window)
    priced: list[Price] = []
    for case in itertools.product(*(text.split(",") for text in lists)):
        schedules = compile_schedules(*case)
        priced.append(price(case, schedules))
        for direction, schedule in schedules.items():
            lines.append(describe(priced[-1], direction, schedule))
            print(lines[-1], flush=True)
        if given.store and given.kernel == "flash":
            data = PretrainOptions(
                segments=given.segments, short_seq_prob=float(given.short_seq_prob)
            )
            for most in map(int, given.packed_examples.split(",")):
                print(describe_packed(case, schedules, given.store, data, most), flush=True)
    if given.json_out:
        pathlib.Path(given.json_out).write_text(format_prices(priced))
    if given.update:
        KERNEL_PRICES.write_text(
            format_prices(merge(json.loads(KERNEL_PRICES.read_text()), priced))
        )
    figure = "; ".join(line.partition(" (compiler")[0] for line in lines)
    what = "attention kernels, cycles per row (compiler estimate, no TPU ran them)"
    write_row(row, Measured(what, figure, "exact", versions=package_versions(("libtpu",))))


def price(case: tuple[str, ...], schedules: dict[str, Schedule]) -> Price:
    """Return an entry of the price table: cycles of a device per row of its batch."""
    topology, seq_len, heads, head_width, rate, kernel, window = case
    chip = topology.split(":")[0]
    values = (chip, int(seq_len), int(heads), int(head_width), float(rate) > 0)
    values = (*values, kernel, int(window))
    return dict(zip(KEYS, values, strict=True)) | {
        f"{direction}_cycles": round(schedules[direction].count_cycles() / CORES[chip])
        for direction in DIRECTIONS
    }


def describe(price: Price, direction: str, schedule: Schedule) -> str:
    """Describe the price of one direction in a line."""
    dropout = "dropout" if price["has_dropout"] else "no dropout"
    slots = ", ".join(f"{name} {share:.0%}" for name, share in schedule.slots.items())
    return (
        f"{price['kernel']}, {price['chip']}, {price['seq_len']} tokens, window {price['window']}, "
        f"{price['heads']} heads of "
        f"{price['head_width']}, {dropout}, {direction}: {price[f'{direction}_cycles']} "
        f"cycles per row (compiler estimate); slots used: {slots}"
    )


def describe_packed(
    case: tuple[str, ...],
    schedules: dict[str, Schedule],
    store: str,
    data: PretrainOptions,
    most: int,
) -> str:
    """Describe the rows that the packer makes of a store, and their mean price, in a line."""
    topology, seq_len, _, head_width, *_, window = case
    fill, examples, share = measure_rows(store, data, int(seq_len), int(head_width), most)
    share = 1.0 if int(window) else share
    chip = topology.split(":")[0]
    cycles = [round(each.count_cycles(share) / CORES[chip]) for each in schedules.values()]
    return (
        f"  at most {most} examples per row: {examples:.2f} on average, {fill:.1%} of the "
        f"positions hold a token, {share:.1%} of the chunks are seen: "
        f"{' + '.join(map(str, cycles))} cycles"
    )


def measure_rows(
    folder: str, data: PretrainOptions, seq_len: int, head_width: int, most: int
) -> tuple[float, float, float]:
    """Return the share of positions with a token, examples per row, and the share of chunks seen.

    Measured over an epoch of packed rows; padding counts as an example, as in training.
    """
    store = open_store(folder)
    slots = max(1, round(seq_len * data.masked_lm_prob))
    source = open_examples(store, store.train, data, seq_len, slots)
    lengths_E = measure_examples(store.train, source.walks.get(0).walk)
    plan = plan_rows(lengths_E, 1, seq_len, most)
    examples_BN = plan.find_examples(np.arange(plan.rows))
    lengths_BN = np.where(examples_BN >= 0, lengths_E[examples_BN], 0)
    ends_BN = np.cumsum(lengths_BN, axis=1, dtype=np.int64)
    ids_BS = np.stack([np.searchsorted(ends, np.arange(seq_len), "right") for ends in ends_BN])
    tile = Tile(seq_len, head_width, seq_len, seq_len, is_rotated=True)
    jax.config.update("jax_platforms", "cpu")  # libtpu is here as a compiler only
    bounds = flash._find_chunks(jax.numpy.asarray(ids_BS, np.int32), tile)
    seen = np.asarray(bounds)[:, 1::2].mean() * tile.chunk / seq_len
    fill = lengths_BN.sum() / (plan.rows * seq_len)
    return float(fill), len(lengths_E) / plan.rows, float(seen)


def merge(old: list[Price], new: list[Price]) -> list[Price]:
    """Return old and new prices in order; a new price replaces the old one of its case."""
    by_case = {tuple(each[key] for key in KEYS): each for each in (*old, *new)}
    return [by_case[case] for case in sorted(by_case)]


def format_prices(prices: list[Price]) -> str:
    """Format prices as JSON, one case per line."""
    return "[\n" + ",\n".join(f"  {json.dumps(price)}" for price in prices) + "\n]\n"


def compile_schedules(
    topology: str,
    seq_len: str,
    heads: str,
    head_width: str,
    rate: str,
    kernel: str,
    window: str,
) -> dict[str, Schedule]:
    """Compile the kernels of one case in a process of its own and read what libtpu dumped."""
    with tempfile.TemporaryDirectory() as folder:
        # libtpu reads them once, when it is loaded: each case has a process and a folder.
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_STDERR_LOG_LEVEL": "3",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true",
        }
        command = [sys.executable, "-m", "benchmarks.compile_kernel", topology, seq_len, heads]
        done = subprocess.run(
            [*command, head_width, rate, kernel, window],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stderr[-3000:]}\n{topology} was not compiled: the reason is above")
        (facts,) = (json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{")
        return {
            direction: read_schedule(pathlib.Path(folder), name, facts["steps"], facts["chunks"])
            for direction, name in zip(DIRECTIONS, NAMES[kernel], strict=True)
        }


def count_cycles(text: str, steps: int, chunks: float) -> tuple[int, int]:
    """Count the bundles of a final schedule, and the cycles of a row.

    The outermost loop runs over the grid, `steps` times per row; the few bundles around it are
    counted with it. Bundles of an inner loop count once per iteration, `chunks` times where the
    schedule states no number. Of several inner loops the first prepares a row: once per row.
    """
    bundle = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?:(\w\w)\s*)?:(.*)$", re.MULTILINE)
    lines = bundle.findall(text)
    weights = [float(steps)] * len(lines)
    loops: list[tuple[int, int]] = []
    entered: list[tuple[int, list[str]]] = []
    for number, (key, line) in enumerate(lines):
        if key == "LB":
            entered.append((number, re.findall(r"Start region (\d+)", line)))
        for target in re.findall(r"sbr\.rel \(!?%p\S+\) target = \$region(\d+)", line):
            for loop in [loop for loop in entered if target in loop[1]]:
                entered.remove(loop)
                loops.append((loop[0], number + 1))
    _, *inner = sorted(loops)
    for index, (first, end) in enumerate(inner):
        count = count_trips(" ".join(line for _, line in lines[first:end])) or chunks
        for number in range(first, end):
            weights[number] *= count / steps if index == 0 and len(inner) > 1 else count
    return len(lines), round(sum(weights))


def count_trips(body: str) -> int | None:
    """Count how often a loop runs, by its last exit test; None if it depends on data."""
    test = r"scmp\.ge\.s32\.totalorder (%s\d+)\S*, (\S+?)\s*/\* loop exit"
    tests = re.findall(test, body)
    if not tests:
        return None
    counter, bound = tests[-1]
    added = re.search(rf"{counter}\S* = sadd\.s32 (\d+), ", body)
    return math.ceil(int(bound) / int(added[1])) if added and bound.isdigit() else None


def read_schedule(folder: pathlib.Path, name: str, steps: int, chunks: int) -> Schedule:
    """Read the final schedule of the kernel of this name in a dump."""
    (path,) = folder.glob(f"*{name}*[0-9]-final_bundles.txt")
    text = path.read_text()
    bundles, _ = count_cycles(text, steps, chunks)
    stem = path.name.rsplit("-", 2)[0]
    (use,) = folder.glob(f"{stem}-*final_hlo-static-per-bundle-utilization.txt")
    _, names, places, _, *taken = use.read_text().splitlines()
    capacity = [int(number) * bundles for number in places.split()]
    rows = [[int(number) for number in line.split()] for line in taken if line.strip()]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    shares = (total / most for total, most in zip(totals, capacity, strict=True))
    kinds = (kind.strip() for kind in names.split(","))
    return Schedule(text, steps, chunks, dict(zip(kinds, shares, strict=True)))


if __name__ == "__main__":
    main()
