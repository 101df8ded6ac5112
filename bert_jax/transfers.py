"""Collectives as transfers: what a chip sends, over which path, and how long it is waited for."""

import dataclasses

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LINKS, NETWORK = "links", "network"


@dataclasses.dataclass
class Traffic:
    """Collectives of one kind, in a step, of one device."""

    calls: int = 0
    result_bytes: float = 0.0
    wire_bytes: float = 0.0  # that leave a chip
    secs: float = 0.0  # on the wire
    exposed_secs: float = 0.0  # of these, when the chip has nothing else to do

    def add(self, other: "Traffic", times: int) -> None:
        """Add what another did, so many times."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name) + times * getattr(other, field.name)
            setattr(self, field.name, value)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One collective, before it is known when it runs."""

    kind: str
    path: str
    result_bytes: int
    wire_bytes: float
    secs: float


class Timeline:
    """When it is, when each path is free again, and which transfers are under way."""

    def __init__(self) -> None:
        self.now = 0.0
        self._free = {LINKS: 0.0, NETWORK: 0.0}
        self._open: dict[str, tuple[Transfer, float]] = {}

    def is_open(self, key: str) -> bool:
        """Whether a transfer was begun and not waited for."""
        return key in self._open

    def start(self, key: str, transfer: Transfer) -> None:
        """Begin a transfer once its path is free."""
        end = max(self.now, self._free[transfer.path]) + transfer.secs
        self._free[transfer.path] = end
        self._open[key] = (transfer, end)

    def wait(self, key: str) -> tuple[Transfer, float]:
        """Wait for a transfer: it, and for how long."""
        transfer, end = self._open.pop(key)
        waited = max(0.0, end - self.now)
        self.now += waited
        return transfer, waited

    @property
    def under_way(self) -> list[str]:
        """Transfers that were not waited for."""
        return list(self._open)


def wire_bytes(kind: str, result_bytes: int, members: int) -> float:
    """Bytes that each member of a ring sends; what is no ring, such as one-to-one, sends its own.

    Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations
    in MPICH", section 4: ring algorithms.
    """
    share = (members - 1) / members
    if kind == "all-reduce":
        return 2 * share * result_bytes
    if kind == "reduce-scatter":
        return (members - 1) * result_bytes
    if kind in ("all-gather", "all-to-all"):
        return share * result_bytes
    return float(result_bytes)
