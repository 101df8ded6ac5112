"""What a run comes to: hours and money, from a price table that the user can edit."""

import dataclasses
import json
import math
import pathlib
from typing import Any

FILE = pathlib.Path(__file__).with_name("prices.json")
_KEYS = {"read", "usd_per_chip_hour"}


@dataclasses.dataclass(frozen=True)
class Prices:
    """A price table: dollars for a chip and an hour by version, and where they were read."""

    path: pathlib.Path
    read: str
    usd_per_chip_hour: dict[str, float]

    def missing(self, chip: str) -> str:
        """What to say of a chip without a price."""
        return (
            f"{self.path} has no price for {chip}; add one under usd_per_chip_hour in a copy of it "
            "and give that as --prices=FILE"
        )


def read_prices(path: pathlib.Path = FILE) -> Prices:
    """Read a table like ours, {"read": where and when, "usd_per_chip_hour": {"v5e": 1.2}}.

    Raises:
      ValueError: it is not such a table.
      OSError: it cannot be read.
    """
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {_way_out()}") from error
    if not isinstance(table, dict) or table.keys() != _KEYS:
        raise ValueError(f"{path} does not have the keys {sorted(_KEYS)}; {_way_out()}")
    read, of_chips = table["read"], table["usd_per_chip_hour"]
    if not isinstance(read, str) or not isinstance(of_chips, dict):
        raise ValueError(f"{path} does not say where prices of chips were read; {_way_out()}")
    for chip, usd in of_chips.items():
        is_number = isinstance(usd, int | float) and not isinstance(usd, bool)
        if not is_number or not math.isfinite(usd) or usd < 0:
            raise ValueError(f"{path} has {usd!r} as the price of {chip}; give dollars an hour")
    return Prices(path, read, {chip: float(usd) for chip, usd in of_chips.items()})


def _way_out() -> str:
    return f"write it like {FILE}"


def cost_usd(chips: int, secs: float, usd_per_chip_hour: float) -> float:
    """Dollars of so many chips for so long."""
    return chips * secs / 3600 * usd_per_chip_hour


def dollars(usd: float) -> str:
    """Write an amount with cents below 100 dollars: "$0.47", "$1,843"."""
    return f"${usd:,.2f}" if usd < 100 else f"${usd:,.0f}"
