"""Cycles of the attention kernel by chip and shape, as benchmarks/kernel_price.py counted them."""

import dataclasses
import functools
import json
import pathlib

FILE = pathlib.Path(__file__).with_name("kernel_prices.json")
FORWARD, BACKWARD = "attention_forward", "attention_backward"  # in the names of its instructions


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the price of a row depends on; heads are those of one device."""

    chip: str
    seq_len: int
    heads: int
    head_width: int
    has_dropout: bool


def cycles_per_row(shape: Shape) -> dict[str, float]:
    """Cycles of one row of a batch by kernel; empty where the shape was not priced."""
    row = _table().get(shape)
    if row is None:
        return {}
    return {FORWARD: row["forward_cycles"], BACKWARD: row["backward_cycles"]}


@functools.cache
def _table() -> dict[Shape, dict[str, float]]:
    names = [field.name for field in dataclasses.fields(Shape)]
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    return {Shape(**{name: row[name] for name in names}): row for row in rows}
