"""Price a run in dollars, and look up the cycles of the attention kernels.

prices.json has dollars per chip and hour, and users may edit it; kernel_prices.json has cycles by
chip and shape, as counted by benchmarks/kernel_price.py.
"""

import dataclasses
import json
import math
import pathlib

from bert_jax.model.attention import flash
from data_pipeline.io import small_files

FILE = pathlib.Path(__file__).with_name("prices.json")


@dataclasses.dataclass(frozen=True)
class Prices:
    """A price table: dollars for a chip and an hour by version, and where they were read."""

    path: pathlib.Path
    read: str
    usd_per_chip_hour: dict[str, float]

    def missing(self, chip: str) -> str:
        """Explain how to give a chip a price."""
        return (
            f"{self.path} has no price for {chip}; add one under usd_per_chip_hour in a copy of it "
            "and give that as --prices=FILE"
        )


def read_prices(path: pathlib.Path = FILE) -> Prices:
    """Read a price table, {"read": where and when, "usd_per_chip_hour": {"v5e": 1.2}}.

    Raises:
      ValueError: it is not such a table.
    """
    try:
        table = small_files.read_object(path)
        read = small_files.field(table, "read", str, path)
        usd_per_chip_hour = small_files.field(table, "usd_per_chip_hour", dict, path)
    except small_files.DamagedFile as error:
        raise ValueError(f"{error}; write it like {FILE}") from error
    for chip, usd in usd_per_chip_hour.items():
        if type(usd) not in (int, float) or not 0 <= usd < math.inf:
            raise ValueError(f"{path} has {usd!r} as the price of {chip}; give dollars an hour")
    return Prices(path, read, {chip: float(usd) for chip, usd in usd_per_chip_hour.items()})


def format_dollars(usd: float) -> str:
    """Write an amount with cents below 100 dollars: "$0.47", "$1,843"."""
    return f"${usd:,.2f}" if usd < 100 else f"${usd:,.0f}"


KERNEL_PRICES = pathlib.Path(__file__).with_name("kernel_prices.json")
# Words in the names of each kernel's instructions, forward and backward.
NAMES = {
    "attention": ("attention_forward", "attention_backward"),
    "flash": ("flash_forward", "flash_backward"),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes that the price of a row depends on; heads are those of one device.

    kernel is "attention", of short rows, or "flash", of long ones; window is that of a layer's
    attention, 0 where it attends to the complete row.
    """

    chip: str
    seq_len: int
    heads: int
    head_width: int
    has_dropout: bool
    kernel: str = "attention"
    window: int = 0


def look_up_cycles(shape: Shape) -> dict[str, float]:
    """Return the cycles of a row by words of the kernels' names; empty if not priced."""
    sizes = dataclasses.asdict(shape)
    for row in json.loads(KERNEL_PRICES.read_text(encoding="utf-8")):
        if sizes.items() <= {"kernel": "attention", "window": 0, **row}.items():
            scope = f"{flash.SCOPE_OF_WINDOWS} " if shape.window else ""
            cycles = (row["forward_cycles"], row["backward_cycles"])
            names = (f"{scope}{name}" for name in NAMES[shape.kernel])
            return dict(zip(names, cycles, strict=True))
    return {}
