"""What the TPU's compiler expects a compiled step to take: cycles, and what its collectives add.

XLA for TPU writes estimated cycles on most instructions of its schedule; they are added up here,
loops times their trips and conditionals at their dearest branch. Three kinds have none:

    Pallas kernels      cost the price that the caller gives; one without a price is named
    rng-bit-generator   costs what it takes to write its result to memory
    collectives         take the bytes that a ring sends over the links of the chip with fewest,
                        (hops from device to device: over the links on their way), and of that
                        only what the work scheduled meanwhile does not hide
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bert_jax import hlo
from bert_jax.hlo import Instruction, Program
from bert_jax.transfers import KINDS, LINKS, NETWORK, Timeline, Traffic, Transfer, wire_bytes


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a program is priced for; rates are a device's."""

    clock_hz: float
    hbm_bytes_per_sec: float
    devices: int  # of a slice
    ring: Callable[[Sequence[int]], tuple[int, float]]  # device numbers -> chips, bytes/s of each
    hop: Callable[[Sequence[tuple[int, int]]], float]  # senders and receivers -> bytes/s of each
    num_slices: int = 1
    network_bytes_per_sec: float = 0.0  # of a chip, to other slices; 0: not known


@dataclasses.dataclass
class Cost:
    """What a step takes of one device."""

    cycles: float = 0.0  # of all instructions and priced kernels; collectives apart
    kernel_cycles: float = 0.0  # of these, in kernels
    kernel_calls: Counter[str] = dataclasses.field(default_factory=Counter)
    unpriced_calls: Counter[str] = dataclasses.field(default_factory=Counter)
    traffic: dict[tuple[str, str], Traffic] = dataclasses.field(default_factory=dict)

    @property
    def exposed_secs(self) -> float:
        """How long the device waits for collectives."""
        return sum(one.exposed_secs for one in self.traffic.values())

    def secs(self, clock_hz: float) -> float:
        """How long the step takes."""
        return self.cycles / clock_hz + self.exposed_secs

    def of(self, kind: str, path: str) -> Traffic:
        """The traffic of a kind over the links or the network."""
        return self.traffic.setdefault((kind, path), Traffic())

    def add(self, other: "Cost", times: int = 1) -> None:
        """Add what another costs, so many times."""
        self.cycles += times * other.cycles
        self.kernel_cycles += times * other.kernel_cycles
        for name, calls in other.kernel_calls.items():
            self.kernel_calls[name] += times * calls
        for name, calls in other.unpriced_calls.items():
            self.unpriced_calls[name] += times * calls
        for (kind, path), one in other.traffic.items():
            self.of(kind, path).add(one, times)


def price(text: str, machine: Machine, kernels: Mapping[str, float]) -> Cost:
    """Price `compiled.as_text()`; kernels: cycles a call, by a part of the kernel's name.

    Raises:
      ValueError: the text is not of a program compiled for a TPU, or a loop's trips are unknown.
    """
    program = hlo.parse(text)
    cost = _Pricing(program, machine, kernels).of(program.entry)
    if not cost.cycles:
        raise ValueError(
            "the compiled program states no estimated cycles; compile it for a TPU topology"
        )
    return cost


class _Pricing:
    """Walks a program in the order of its schedule."""

    def __init__(self, program: Program, machine: Machine, kernels: Mapping[str, float]) -> None:
        self._program = program
        self._machine = machine
        self._kernels = kernels

    def of(self, name: str) -> Cost:
        """What one run of a computation costs."""
        cost, clock = Cost(), Timeline()
        same: dict[str, str] = {}  # an instruction that goes on with a transfer -> its key
        for one in self._program.computations[name]:
            before = cost.secs(self._machine.clock_hz)
            if not self._transfers(one, clock, same, cost):
                self._add_work(one, cost)
                clock.now += cost.secs(self._machine.clock_hz) - before
        for key in clock.under_way:
            self._finish(key, clock, cost)
        return cost

    def _add_work(self, one: Instruction, cost: Cost) -> None:
        if one.opcode == "while":
            trips = hlo.trip_count(self._program, one)
            if trips is None:
                raise ValueError(f"the compiled loop {one.name} does not state how often it runs")
            cost.add(self.of(one.attribute("body")), trips)
        elif one.opcode == "conditional":
            clock_hz = self._machine.clock_hz
            branches = [self.of(name) for name in hlo.branches(one)]
            cost.add(max(branches, key=lambda branch: branch.secs(clock_hz)))
        elif one.opcode == "call":
            cost.add(self.of(one.attribute("to_apply")))
        elif one.quoted("custom_call_target") == "tpu_custom_call":
            self._add_kernel(one, cost)
            return
        cycles = float(one.estimated_cycles or 0)
        if one.opcode == "rng-bit-generator":
            rate = self._machine.hbm_bytes_per_sec / self._machine.clock_hz
            cycles = hlo.array_bytes(one.result) / rate
        cost.cycles += cycles

    def _add_kernel(self, one: Instruction, cost: Cost) -> None:
        name = one.name.rstrip(".0123456789")
        cycles = next((price for part, price in self._kernels.items() if part in name), None)
        if cycles is None:
            cost.unpriced_calls[name] += 1
            return
        cost.kernel_calls[name] += 1
        cost.cycles += cycles
        cost.kernel_cycles += cycles

    def _transfers(
        self, one: Instruction, clock: Timeline, same: dict[str, str], cost: Cost
    ) -> bool:
        """Whether it is a collective, or a part of one, and nothing else."""
        if one.opcode == "fusion":
            return self._fused_transfer(one, clock, cost)
        if one.opcode in ("send", "recv", "send-done", "recv-done"):
            return self._network_transfer(one, clock, same, cost)
        if one.opcode in KINDS:
            clock.start(one.name, self._transfer(one.opcode, one))
            self._finish(one.name, clock, cost)
            return True
        kind, _, role = one.opcode.rpartition("-")
        if kind not in (*KINDS, "async"):
            return False
        inner = self._inner(one) if role == "start" and kind == "async" else one
        if role == "start" and inner is not None:
            opcode = inner.opcode.removesuffix("-start")
            clock.start(one.name, self._transfer(opcode, inner))
            same[one.name] = one.name
        elif role == "update" and one.operands[0] in same:
            same[one.name] = same[one.operands[0]]
        elif role == "done" and one.operands[0] in same:
            self._finish(same[one.operands[0]], clock, cost)
        else:
            return False
        return True

    def _fused_transfer(self, one: Instruction, clock: Timeline, cost: Cost) -> bool:
        """A collective in a fusion: begun, carried on beside other work, waited for, or all of it.

        The pieces of one collective share its channel.
        """
        inner = self._inner(one)
        if inner is None:
            return False
        key = f"channel {inner.attribute('channel_id')}"
        body = self._program.computations[one.attribute("calls")]
        if any(each.quoted("custom_call_target") == "AsyncCollectiveStart" for each in body):
            clock.start(key, self._transfer(inner.opcode, inner))
            return True
        if clock.is_open(key):
            if one.name.startswith("async-collective-done"):
                self._finish(key, clock, cost)
                return True
            return False
        transfer = self._transfer(inner.opcode, inner)
        if inner.opcode == "all-reduce" and "scatter" in one.attribute("calls"):
            # Its all-reduce has the whole result, of which each device gets and keeps a part.
            transfer = dataclasses.replace(
                self._transfer("all-gather", inner),
                kind="reduce-scatter",
                result_bytes=hlo.array_bytes(one.result),
            )
        clock.start(key, transfer)
        self._finish(key, clock, cost)
        return False  # the work around it is estimated

    def _inner(self, one: Instruction) -> Instruction | None:
        """The collective in the computation that an instruction calls."""
        body = self._program.computations.get(one.attribute("calls"), [])
        return next((each for each in body if each.opcode in KINDS), None)

    def _network_transfer(
        self, one: Instruction, clock: Timeline, same: dict[str, str], cost: Cost
    ) -> bool:
        """A collective between slices: each host sends its chips' parts and gets the results."""
        kind = one.quoted("_xla_megascale_transfer_type").lower().replace("_", "-")
        key = one.quoted("_xla_host_transfer_rendezvous")
        if one.opcode == "send" and kind:
            moved = hlo.array_bytes(hlo.parts(one.result)[0])
            wire = wire_bytes(kind, moved, self._machine.num_slices)
            rate = self._machine.network_bytes_per_sec
            secs = wire / rate if rate else 0.0
            clock.start(key, Transfer(kind, NETWORK, moved, wire, secs))
        elif one.opcode == "recv" and kind:
            same[one.name] = key
        elif one.opcode == "recv-done" and clock.is_open(same.get(one.operands[0], "")):
            self._finish(same[one.operands[0]], clock, cost)
        return True

    def _transfer(self, kind: str, one: Instruction) -> Transfer:
        result = one.result
        if one.opcode.endswith("-start") and kind != "all-reduce":
            result = hlo.parts(result)[1]  # beside what goes in
        size = hlo.array_bytes(result)
        if kind == "collective-permute":
            rate = self._machine.hop(hlo.pairs(one.rest))
            return Transfer(kind, LINKS, size, size, size / rate)
        group = hlo.first_group(one.rest, self._machine.devices)
        chips, rate = self._machine.ring(group)
        of_a_chip = size
        if kind in ("reduce-scatter", "all-to-all"):  # the result is not the whole, but a device's
            of_a_chip = size * len(group) // chips
        wire = wire_bytes(kind, of_a_chip, chips)
        return Transfer(kind, LINKS, size, wire, wire / rate)

    def _finish(self, key: str, clock: Timeline, cost: Cost) -> None:
        transfer, waited = clock.wait(key)
        done = Traffic(1, transfer.result_bytes, transfer.wire_bytes, transfer.secs, waited)
        cost.of(transfer.kind, transfer.path).add(done, 1)
