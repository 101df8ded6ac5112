"""Slices of TPU chips: their names, shapes and links, and devices to compile for without a TPU."""

import dataclasses
import importlib.util
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import chips
from bert_jax.chips import Chip
from data_pipeline.interpreter import how_to_install

_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BOXES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x12")
_LARGE_BOXES = ("8x8x16", "8x16x16")

# Shapes that Google offers, by version. Source: the page of each version under
# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm.
SHAPES: dict[str, tuple[str, ...]] = {
    "v2": ("2x2", "4x4", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    "v4": _BOXES + _LARGE_BOXES,
    "v5e": _SQUARES,
    "v5p": _BOXES + _LARGE_BOXES + ("16x16x16", "16x16x24"),
    "v6e": _SQUARES,
}

# gcloud's accelerator types: how a version is written, and whether they count its cores (two a
# chip) or its chips.
_GCLOUD = {
    "v2": ("v2", 2),
    "v3": ("v3", 2),
    "v4": ("v4", 2),
    "v5e": ("v5litepod", 1),
    "v5p": ("v5p", 2),
    "v6e": ("v6e", 1),
}

_CUBE_EDGE = (
    4  # chips along an edge of the block from which slices of v4 and v5p get wrap-around links
)
_POD_EDGE = {"v2": 16, "v3": 32, "v5e": 16, "v6e": 16}  # chips; only so long an edge wraps around


# Memory of a device that libtpu 0.0.52 leaves to programs, as its compiler says of one that is too
# large for it, in GiB.
_USABLE_GIB = {"v2": 7.48, "v3": 15.48, "v4": 30.75, "v5e": 15.75, "v5p": 95.73, "v6e": 31.24}


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips in a box, joined by their links; several such boxes are joined by the network."""

    chip: Chip
    dims: tuple[int, ...]  # chips along each edge
    num_slices: int = 1

    @property
    def name(self) -> str:
        """Such as v5e:4x4, of one box."""
        return f"{self.chip.name}:{'x'.join(map(str, self.dims))}"

    @property
    def accelerator_type(self) -> str:
        """What gcloud calls one box."""
        word, counted = _GCLOUD[self.chip.name]
        return f"{word}-{math.prod(self.dims) * counted}"

    @property
    def chips(self) -> int:
        """Chips of all boxes."""
        return math.prod(self.dims) * self.num_slices

    @property
    def devices(self) -> int:
        """Devices of JAX: on v2 and v3 each core of a chip is one."""
        return self.chips * self.chip.devices_per_chip

    @property
    def usable_bytes(self) -> int:
        """Memory of a chip that is left to programs."""
        return round(_USABLE_GIB[self.chip.name] * 2**30) * self.chip.devices_per_chip

    @property
    def links(self) -> int:
        """Links of the chip that has fewest, a corner: what bounds a collective over all chips."""
        return self._links([range(size) for size in self.dims])

    def ring(self, positions: Sequence[Sequence[int]]) -> tuple[int, float]:
        """How many chips lie at these coordinates, and bytes/s that each can pass on.

        A chip in a corner has one link along an edge without wrap-around and two along one with
        it; a collective moves no faster than that chip. Chips with others between them share the
        links with the groups of those others.
        """
        found = {tuple(position) for position in positions}
        along = [[position[axis] for position in found] for axis in range(len(self.dims))]
        between = math.prod(max(places) - min(places) + 1 for places in along)
        links = max(self._links([set(places) for places in along]), 1)
        return len(found), links * len(found) / between * self.chip.link_bytes_per_sec

    def hop(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
        """Bytes/s of each of these pairs of chips while all of them send, first to second.

        They go along one edge after the other, the shorter way round where it closes; the link that
        most of them cross is shared.
        """
        crossed: Counter[tuple[tuple[int, ...], int, int]] = Counter()
        for sender, receiver in pairs:
            at = list(sender)
            for axis, size in enumerate(self.dims):
                ahead = (receiver[axis] - at[axis]) % size
                goes_up = receiver[axis] > at[axis]
                if self._wraps(axis):
                    goes_up = 2 * ahead <= size
                while at[axis] != receiver[axis]:
                    crossed[tuple(at), axis, 1 if goes_up else -1] += 1
                    at[axis] = (at[axis] + (1 if goes_up else -1)) % size
        return self.chip.link_bytes_per_sec / max(crossed.values(), default=1)

    def _links(self, extents: Sequence[Any]) -> int:
        spans = zip(extents, self.dims, range(len(self.dims)), strict=True)
        return sum(
            0 if len(extent) == 1 else 2 if len(extent) == size and self._wraps(axis) else 1
            for extent, size, axis in spans
        )

    def _wraps(self, axis: int) -> bool:
        if self.chip.name in _POD_EDGE:
            return self.dims[axis] == _POD_EDGE[self.chip.name]
        return all(size % _CUBE_EDGE == 0 for size in self.dims)


def find(name: str, num_slices: int = 1) -> Slice:
    """The slice of a topology such as v5e:8x8, or of gcloud's name for it, v5litepod-64.

    Raises:
      ValueError: there is none of that name, with those that there are.
    """
    known = {one.name: one for version in SHAPES for one in _of(version)}
    known |= {one.accelerator_type: one for one in known.values()}
    if name not in known:
        raise ValueError(_unknown(name))
    found = dataclasses.replace(known[name], num_slices=num_slices)
    if num_slices < 1:
        raise ValueError(f"config.mesh.num_slices is {num_slices}; it must be 1 or more")
    if num_slices > 1 and found.chip.name in ("v2", "v3"):
        raise ValueError(
            f"config.mesh.num_slices is {num_slices}, and slices of {found.chip.name} cannot be "
            "joined by the network; take one slice, or v4, v5e, v5p or v6e"
        )
    return found


def of_chips(like: Slice, count: int) -> Slice:
    """The slice of so many chips of the same version.

    Raises:
      ValueError: there is none of that size.
    """
    sizes = {one.chips: one for one in _of(like.chip.name)}
    if count not in sizes:
        raise ValueError(
            f"--scale has {count}, and there is no {like.chip.name} slice of {count} chips; there "
            f"are slices of {', '.join(map(str, sizes))}"
        )
    return dataclasses.replace(sizes[count], num_slices=like.num_slices)


def _of(version: str) -> list[Slice]:
    chip = next(chip for chip in chips.TPUS if chip.name == version)
    return [Slice(chip, tuple(int(n) for n in text.split("x"))) for text in SHAPES[version]]


def _unknown(name: str) -> str:
    version = name.partition(":")[0].partition("-")[0].replace("v5litepod", "v5e")
    if version in SHAPES:
        ours = ", ".join(f"{one.name} ({one.accelerator_type})" for one in _of(version))
    else:
        ours = "; ".join(f"{known}: {', '.join(SHAPES[known])}" for known in SHAPES)
    return f"--topology={name}: there is no such TPU slice; there are {ours}"


def open_devices(of: Slice) -> list[Any]:
    """Devices to compile for, slice after slice; needs libtpu and no TPU.

    Raises:
      ValueError: libtpu is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            "libtpu, which has the TPU's compiler and exists for Linux on x86-64 only, is not "
            f"installed; {how_to_install('plan')}"
        )
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if of.chip.name == "v4":  # else a device is a core, as it is on v2 and v3
        options["chip_config_name"] = "megacore"
    if of.num_slices > 1:
        options["num_slices"] = of.num_slices
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=of.name, **options)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"--topology={of.name}: this libtpu does not know it ({error}); install another "
            "version of libtpu, or plan for another slice"
        ) from error
    return list(found.devices)
