"""Price a compiled step from the TPU compiler's cycle estimates and a model of its collectives.

XLA for TPU writes estimated cycles on most instructions of its schedule. The cycles are summed:
loops times their trip count, conditionals at their costliest branch. Three kinds have no estimate:

    Pallas kernels      cost the price that the caller gives; one without a price is reported
    rng-bit-generator   costs the time to write its result to memory
    collectives         are transfers over the links within a slice or the network between slices:
                        a ring sends its bytes over the links of the chip with the fewest, a
                        collective-permute over the links on the way; only the time that is not
                        hidden by work scheduled meanwhile counts
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from bert_jax.planning import hlo
from bert_jax.planning.hlo import HloProgram, Instruction
from bert_jax.planning.slices import Slice
from data_pipeline.io import Refused

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LINKS, NETWORK = "links", "network"


@dataclasses.dataclass
class Traffic:
    """Sum the collectives of one kind in a step, for one chip."""

    kind: str
    path: str  # "links" within a slice, or "network" between slices
    calls: int = 0
    result_bytes: float = 0.0
    wire_bytes: float = 0.0  # bytes that leave a chip
    secs: float = 0.0  # seconds on the wire
    exposed_secs: float = 0.0  # the part of secs while the chip has nothing else to do

    def add(self, other: "Traffic", times: int) -> None:
        """Add the traffic of another, so many times."""
        self.calls += times * other.calls
        self.result_bytes += times * other.result_bytes
        self.wire_bytes += times * other.wire_bytes
        self.secs += times * other.secs
        self.exposed_secs += times * other.exposed_secs


def compute_wire_bytes(kind: str, result_bytes: int, members: int) -> float:
    """Return the bytes that each member of a collective sends, in a ring or one-to-one.

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


@dataclasses.dataclass
class ProgramCost:
    """Hold the cost of a step on one device."""

    cycles: float = 0.0  # all instructions and priced kernels, no collectives
    kernel_cycles: float = 0.0  # the part of cycles in kernels
    kernel_calls: Counter[str] = dataclasses.field(default_factory=Counter)
    unpriced_calls: Counter[str] = dataclasses.field(default_factory=Counter)
    traffic: dict[tuple[str, str], Traffic] = dataclasses.field(default_factory=dict)

    @property
    def exposed_secs(self) -> float:
        """Return the seconds that the device waits for collectives."""
        return sum(traffic.exposed_secs for traffic in self.traffic.values())

    def secs(self, clock_hz: float) -> float:
        """Return the seconds of the step."""
        return self.cycles / clock_hz + self.exposed_secs

    def add_traffic(self, other: Traffic, times: int = 1) -> None:
        """Add traffic to the sum of its kind and path."""
        own = self.traffic.setdefault((other.kind, other.path), Traffic(other.kind, other.path))
        own.add(other, times)

    def add(self, other: "ProgramCost", times: int = 1) -> None:
        """Add the cost of another, so many times."""
        self.cycles += times * other.cycles
        self.kernel_cycles += times * other.kernel_cycles
        for name, calls in other.kernel_calls.items():
            self.kernel_calls[name] += times * calls
        for name, calls in other.unpriced_calls.items():
            self.unpriced_calls[name] += times * calls
        for traffic in other.traffic.values():
            self.add_traffic(traffic, times)


def price(
    text: str,
    tpu_slice: Slice,
    coordinates: Sequence[Sequence[int]],
    kernels: Mapping[str, float | None],
) -> ProgramCost:
    """Price `compiled.as_text()` on a slice.

    coordinates: the chip of each device of one slice. kernels: cycles per call, by words of the
    kernel's name.

    Raises:
      Refused: the text is not of a program compiled for a TPU, or a loop's trips are unknown.
    """
    program = hlo.parse(text)
    cost = ProgramCost()
    if program.entry:
        cost = _Computation(program, tpu_slice, coordinates, kernels).price(program.entry)
    if not cost.cycles:
        raise Refused(
            "the compiled program states no estimated cycles; compile it for a TPU topology"
        )
    return cost


class _Computation:
    """Walk a computation once in the order of its schedule; sum its cost and transfers."""

    def __init__(
        self,
        program: HloProgram,
        tpu_slice: Slice,
        coordinates: Sequence[Sequence[int]],
        kernels: Mapping[str, float | None],
    ) -> None:
        self._program, self._slice = program, tpu_slice
        self._coordinates, self._kernels = coordinates, kernels
        self._cost = ProgramCost()
        self._now = 0.0
        self._free_at = {LINKS: 0.0, NETWORK: 0.0}  # times when a path can take the next transfer
        # Key -> a transfer and the time of its end.
        self._started: dict[str, tuple[Traffic, float]] = {}
        self._keys: dict[str, str] = {}  # an instruction that continues a transfer -> its key

    def price(self, name: str) -> ProgramCost:
        """Price the computation of this name."""
        for instruction in self._program.computations[name]:
            before = self._count_secs(self._cost)
            if not self._add_collective(instruction):
                self._add_work(instruction)
                self._now += self._count_secs(self._cost) - before
        for key in list(self._started):
            self._finish(key)
        return self._cost

    def _price_called(self, name: str) -> ProgramCost:
        rest = (self._slice, self._coordinates, self._kernels)
        return _Computation(self._program, *rest).price(name)

    def _count_secs(self, cost: ProgramCost) -> float:
        return cost.secs(self._slice.chip.clock_hz)

    def _add_work(self, instruction: Instruction) -> None:
        if instruction.opcode == "while":
            trips = hlo.read_trip_count(self._program, instruction)
            if trips is None:
                raise Refused(
                    f"the compiled loop {instruction.name} does not state how often it runs"
                )
            self._cost.add(self._price_called(instruction.attribute("body")), trips)
        elif instruction.opcode == "conditional":
            branches = [self._price_called(name) for name in hlo.list_branches(instruction)]
            self._cost.add(max(branches, key=self._count_secs))
        elif instruction.opcode == "call":
            self._cost.add(self._price_called(instruction.attribute("to_apply")))
        elif instruction.attribute("custom_call_target") == "tpu_custom_call":
            self._add_kernel(instruction)
            return
        cycles = float(instruction.estimated_cycles or 0)
        if instruction.opcode == "rng-bit-generator":
            chip = self._slice.chip
            rate = chip.hbm_bytes_per_sec / chip.devices_per_chip / chip.clock_hz
            cycles = hlo.count_bytes(instruction.result) / rate
        self._cost.cycles += cycles

    def _add_kernel(self, instruction: Instruction) -> None:
        name = instruction.name.rstrip(".0123456789")
        full_name = f"{name} {instruction.attribute('op_name')}"
        cycles = next(
            (
                price
                for words, price in self._kernels.items()
                if all(word in full_name for word in words.split())
            ),
            None,
        )
        if cycles is None:
            self._cost.unpriced_calls[name] += 1
            return
        self._cost.kernel_calls[name] += 1
        self._cost.cycles += cycles
        self._cost.kernel_cycles += cycles

    def _add_collective(self, instruction: Instruction) -> bool:
        """Account for an instruction that is a collective or part of one; return whether it is."""
        if instruction.opcode == "fusion":
            return self._add_fused_collective(instruction)
        if instruction.opcode in ("send", "recv", "send-done", "recv-done"):
            self._add_network_transfer(instruction)
            return True
        if instruction.opcode in KINDS:
            self._start(instruction.name, self._price_collective(instruction.opcode, instruction))
            self._finish(instruction.name)
            return True
        kind, _, role = instruction.opcode.rpartition("-")
        if kind not in (*KINDS, "async"):
            return False
        inner = self._inner(instruction) if role == "start" and kind == "async" else instruction
        if role == "start" and inner is not None:
            opcode = inner.opcode.removesuffix("-start")
            self._start(instruction.name, self._price_collective(opcode, inner))
            self._keys[instruction.name] = instruction.name
        elif role == "update" and instruction.operands[0] in self._keys:
            self._keys[instruction.name] = self._keys[instruction.operands[0]]
        elif role == "done" and instruction.operands[0] in self._keys:
            self._finish(self._keys[instruction.operands[0]])
        else:
            return False
        return True

    def _add_fused_collective(self, instruction: Instruction) -> bool:
        """Account for a collective in a fusion: its start, continuation, end, or all of it.

        The parts of one collective share its channel.
        """
        inner = self._inner(instruction)
        if inner is None:
            return False
        key = f"channel {inner.attribute('channel_id')}"
        body = self._program.computations[instruction.attribute("calls")]
        transfer = self._price_collective(inner.opcode, inner)
        if any(each.attribute("custom_call_target") == "AsyncCollectiveStart" for each in body):
            self._start(key, transfer)
            return True
        if key in self._started:
            if instruction.name.startswith("async-collective-done"):
                self._finish(key)
                return True
            return False
        if inner.opcode == "all-reduce" and "scatter" in instruction.attribute("calls"):
            # The fused all-reduce has the unsharded result; each device keeps a part.
            transfer = dataclasses.replace(
                self._price_collective("all-gather", inner),
                kind="reduce-scatter",
                result_bytes=hlo.count_bytes(instruction.result),
            )
        self._start(key, transfer)
        self._finish(key)
        return False  # the rest of the fusion has an estimate

    def _inner(self, instruction: Instruction) -> Instruction | None:
        """Return the collective in the computation that an instruction calls."""
        body = self._program.computations.get(instruction.attribute("calls"), [])
        return next((each for each in body if each.opcode in KINDS), None)

    def _add_network_transfer(self, instruction: Instruction) -> None:
        """Account for a collective between slices: each host sends its chips' parts."""
        kind = instruction.attribute("_xla_megascale_transfer_type").lower().replace("_", "-")
        key = instruction.attribute("_xla_host_transfer_rendezvous")
        if instruction.opcode == "send" and kind:
            moved = hlo.count_bytes(hlo.split_tuple(instruction.result)[0])
            wire = compute_wire_bytes(kind, moved, self._slice.num_slices)
            rate = self._slice.chip.network_bytes_per_sec
            self._start(key, Traffic(kind, NETWORK, 1, moved, wire, wire / rate if rate else 0.0))
        elif instruction.opcode == "recv" and kind:
            self._keys[instruction.name] = key
        elif instruction.opcode == "recv-done":
            started = self._keys.get(instruction.operands[0], "")
            if started in self._started:
                self._finish(started)

    def _price_collective(self, kind: str, instruction: Instruction) -> Traffic:
        """Return the traffic of a collective within the slice; exposed_secs is not known yet."""
        result = instruction.result
        if instruction.opcode.endswith("-start") and kind != "all-reduce":
            result = hlo.split_tuple(result)[1]  # the first member is the input
        size = hlo.count_bytes(result)
        if kind == "collective-permute":
            pairs = hlo.read_pairs(instruction.rest)  # pairs of all slices
            rate = self._hop([pair for pair in pairs if max(pair) < len(self._coordinates)])
            return Traffic(kind, LINKS, 1, size, size, size / rate)
        group = hlo.read_first_group(instruction.rest, len(self._coordinates))
        if kind == "all-to-all":  # each device sends a piece to every other one
            piece = size / len(group)
            secs = piece / self._hop(list(itertools.permutations(group, 2)))
            return Traffic(kind, LINKS, 1, size, piece * (len(group) - 1), secs)
        chips, rate = self._slice.ring([self._coordinates[device] for device in group])
        # The result of a reduce-scatter is one device's part.
        chip_bytes = size * len(group) // chips if kind == "reduce-scatter" else size
        wire = compute_wire_bytes(kind, chip_bytes, chips)
        return Traffic(kind, LINKS, 1, size, wire, wire / rate)

    def _hop(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Return the bytes/s of each (sender, receiver) pair of devices if all send at once."""
        return self._slice.hop([(self._coordinates[a], self._coordinates[b]) for a, b in pairs])

    def _start(self, key: str, transfer: Traffic) -> None:
        """Begin a transfer once its path is free."""
        end = max(self._now, self._free_at[transfer.path]) + transfer.secs
        self._free_at[transfer.path] = end
        self._started[key] = (transfer, end)

    def _finish(self, key: str) -> None:
        """Wait for a transfer, and add it to the cost."""
        transfer, end = self._started.pop(key)
        transfer.exposed_secs = max(0.0, end - self._now)
        self._now += transfer.exposed_secs
        self._cost.add_traffic(transfer)
