"""Price a run in dollars, and look up the cycles of the attention kernels.

prices.json has dollars per chip-hour with their source, and users may give another list;
kernel_prices.json has cycles by chip and shape, as counted by benchmarks/kernel_price.py.
"""

import dataclasses
import json
import pathlib
from typing import Annotated, TypedDict

from bert_jax.model.attention import flash
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import read_record

FILE = pathlib.Path(__file__).with_name("prices.json")

MAX_USD = 1_000_000  # dollars per chip and hour, far more than any chip costs


@dataclasses.dataclass(frozen=True)
class Price:
    """Hold dollars per chip-hour, with their source and date."""

    chip: str
    usd_on_demand: Annotated[float, 0, MAX_USD]
    # Price of a chip that may be preempted; None if unknown.
    usd_spot: Annotated[float, 0, MAX_USD] | None = None
    region: str = ""
    source: str = ""
    read: str = ""


@dataclasses.dataclass(frozen=True)
class Prices:
    """Hold a price list: a price for each chip."""

    path: pathlib.Path
    by_chip: dict[str, Price]

    def missing(self, chip: str, kind: str = "on_demand") -> str:
        """Explain how to give a chip a price, on demand or spot."""
        return (
            f"{self.path} has no price for {chip}{' spot' if kind == 'spot' else ''}; give it "
            f"usd_{kind} in a copy of {FILE} and that copy as --prices=FILE"
        )


def read_prices(path: pathlib.Path = FILE) -> Prices:
    """Read a price list, {"prices": [{"chip": "v5e", "usd_on_demand": 1.2, ...}]}.

    Raises:
      Refused: it is not a price list.
    """
    try:
        listed = read_record(path, _PriceList)["prices"]
    except small_files.DamagedFile as error:
        raise Refused(f"{error}; write it like {FILE}") from error
    by_chip: dict[str, Price] = {}
    for price in listed:
        if price.chip in by_chip:
            raise Refused(f"{path} has two prices of {price.chip}; keep the price of your region")
        by_chip[price.chip] = price
    return Prices(path, by_chip)


class _PriceList(TypedDict):
    """Declare the fields of a price list file."""

    prices: list[Price]


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
class KernelShape:
    """Hold the sizes that the cycles of a row depend on; heads are those on one device.

    kernel is "attention" (short rows) or "flash" (long rows); window is the layer's, 0
    if it attends to the complete row.
    """

    chip: str
    seq_len: int
    heads: int
    head_width: int
    has_dropout: bool
    kernel: str = "attention"
    window: int = 0


def look_up_cycles(shape: KernelShape) -> dict[str, float]:
    """Return the cycles of a row by words in the kernels' names; {} if not priced."""
    sizes = dataclasses.asdict(shape)
    scope = f"{flash.SCOPE_OF_WINDOWS} " if shape.window else ""
    names = (f"{scope}{name}" for name in NAMES[shape.kernel])
    for row in json.loads(KERNEL_PRICES.read_text(encoding="utf-8")):
        if sizes.items() <= {"kernel": "attention", "window": 0, **row}.items():
            return dict(zip(names, (row["forward_cycles"], row["backward_cycles"]), strict=True))
    return {}
