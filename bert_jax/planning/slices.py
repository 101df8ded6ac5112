"""Describe TPU slices (names, shapes, links), and open devices to compile for without a TPU."""

import dataclasses
import importlib.util
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax.parallel import chips
from bert_jax.parallel.chips import Chip
from data_pipeline.io import Refused
from data_pipeline.io.address import make_install_command
from data_pipeline.io.small_files import list_names

_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BOXES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")  # larger boxes are of cubes of 4x4x4
_EDGES = list(itertools.combinations_with_replacement((4, 8, 12, 16, 20, 24), 3))


def _list_boxes(most_chips: int) -> tuple[str, ...]:
    """List the boxes by chips; the last of a size is the nearest to a cube: gcloud's own."""
    boxes = [edges for edges in _EDGES if math.prod(edges) <= most_chips]
    boxes.sort(key=lambda edges: (math.prod(edges), -sum(edges)))
    return (*_BOXES, *("x".join(map(str, edges)) for edges in boxes))


# Shapes that Google offers, by version. Source: the page of each version under
# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm.
SHAPES: dict[str, tuple[str, ...]] = {
    "v2": ("2x2", "4x4", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    "v4": _list_boxes(4096),
    "v5e": _SQUARES,
    "v5p": _list_boxes(6144),
    "v6e": _SQUARES,
    "tpu7x": _list_boxes(9216),
}

# gcloud's accelerator types: how a version is written, and whether they count its cores (two per
# chip) or its chips.
_GCLOUD = {name: (name, 2) for name in ("v2", "v3", "v4", "v5p")}
_GCLOUD |= {"v5e": ("v5litepod", 1), "v6e": ("v6e", 1), "tpu7x": ("tpu7x", 2)}

# On v4, v5p and tpu7x, edges wrap around if all are multiples of this many chips; on the others, an
# edge wraps around only if it has exactly so many chips.
_CUBE_EDGE = 4
_POD_EDGE = {"v2": 16, "v3": 32, "v5e": 16, "v6e": 16}

# GiB of a device that libtpu 0.0.52 leaves to programs, as its compiler reports for a program that
# does not fit.
_USABLE_GIB = {"v2": 7.48, "v3": 15.48, "v4": 30.75, "v5e": 15.75, "v5p": 95.73, "v6e": 31.24}
_USABLE_GIB |= {"tpu7x": 94.74}


@dataclasses.dataclass(frozen=True)
class Slice:
    """Hold a box of chips joined by links, or several such boxes joined by the network."""

    chip: Chip
    dims: tuple[int, ...]  # chips along each edge
    num_slices: int = 1

    @property
    def name(self) -> str:
        """Return the topology of one box, such as v5e:4x4."""
        return f"{self.chip.name}:{'x'.join(map(str, self.dims))}"

    @property
    def accelerator_type(self) -> str:
        """Return gcloud's name for one box."""
        word, counted = _GCLOUD[self.chip.name]
        return f"{word}-{math.prod(self.dims) * counted}"

    @property
    def chips(self) -> int:
        """Count the chips of all boxes."""
        return math.prod(self.dims) * self.num_slices

    @property
    def devices(self) -> int:
        """Count JAX's devices: on v2 and v3 each core of a chip is one."""
        return self.chips * self.chip.devices_per_chip

    @property
    def usable_bytes(self) -> int:
        """Return the memory of a chip that programs may use."""
        return round(_USABLE_GIB[self.chip.name] * 2**30) * self.chip.devices_per_chip

    @property
    def links(self) -> int:
        """Count the links of a corner chip, which has the fewest and so bounds a collective."""
        return self._links([range(size) for size in self.dims])

    def ring(self, positions: Sequence[Sequence[int]]) -> tuple[int, float]:
        """Return the number of chips at these coordinates, and the bytes/s that each can forward.

        A corner chip has one link along an edge without wrap-around, and two along an edge with it;
        no collective is faster than this chip. A group shares its links with the groups that are
        interleaved with it.
        """
        members = {tuple(position) for position in positions}
        along = [[position[axis] for position in members] for axis in range(len(self.dims))]
        between = math.prod(max(places) - min(places) + 1 for places in along)
        links = max(self._links([set(places) for places in along]), 1)
        return len(members), links * len(members) / between * self.chip.link_bytes_per_sec

    def hop(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
        """Return the bytes/s of each (sender, receiver) pair of chips while all pairs send.

        Routes follow one edge after the other, the shorter way if an edge wraps around; the busiest
        link, divided among its pairs, sets the rate.
        """
        crossed: Counter[tuple[tuple[int, ...], int, int]] = Counter()
        for sender, receiver in pairs:
            position = list(sender)
            for axis, size in enumerate(self.dims):
                ahead = (receiver[axis] - position[axis]) % size
                goes_up = receiver[axis] > position[axis]
                if self._wraps(axis):
                    goes_up = 2 * ahead <= size
                while position[axis] != receiver[axis]:
                    crossed[tuple(position), axis, 1 if goes_up else -1] += 1
                    position[axis] = (position[axis] + (1 if goes_up else -1)) % size
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


def find_slice(name: str, num_slices: int = 1, flag: str = "--topology=") -> Slice:
    """Return the slice of a topology such as v5e:8x8, or of gcloud's name for it, v5litepod-64.

    `flag` precedes the name in an error.

    Raises:
      Refused: no slice has this name; lists those that exist.
    """
    known = {member.name: member for version in SHAPES for member in _list_slices(version)}
    known |= {member.accelerator_type: member for member in known.values()}
    if name not in known:
        version = name.partition(":")[0].partition("-")[0].replace("v5litepod", "v5e")
        if version not in SHAPES:
            raise Refused(
                f"{flag}{name}: {version!r} is not a known TPU version; known are "
                f"{', '.join(SHAPES)}, as in {flag}v5e:4x4"
            )
        members = _list_slices(version)
        names = list_names([f"{member.name} ({member.accelerator_type})" for member in members])
        more = "; longer edges are multiples of 4, ascending" if len(members[0].dims) > 2 else ""
        raise Refused(f"{flag}{name}: there is no such TPU slice; there are {names}{more}")
    tpu_slice = dataclasses.replace(known[name], num_slices=num_slices)
    if num_slices > 1 and tpu_slice.chip.name in ("v2", "v3"):
        raise Refused(
            f"config.mesh.num_slices is {num_slices}, and slices of {tpu_slice.chip.name} cannot "
            "be joined by the network; take one slice, or v4 to tpu7x"
        )
    return tpu_slice


def resize_slice(like: Slice, count: int) -> Slice:
    """Return the slice of `count` chips of the same version.

    Raises:
      Refused: there is none of that size.
    """
    members = [*_list_slices(like.chip.name), dataclasses.replace(like, num_slices=1)]
    sizes = {candidate.chips: candidate for candidate in members}
    if count not in sizes:
        raise Refused(
            f"--scale has {count}, and there is no {like.chip.name} slice of {count} chips; there "
            f"are slices of {', '.join(map(str, sizes))}"
        )
    return dataclasses.replace(sizes[count], num_slices=like.num_slices)


def _list_slices(version: str) -> list[Slice]:
    chip = next(chip for chip in chips.TPUS if chip.name == version)
    return [Slice(chip, tuple(int(n) for n in text.split("x"))) for text in SHAPES[version]]


def open_devices(tpu_slice: Slice) -> list[Any]:
    """Return devices to compile for, slice after slice; requires libtpu, but no TPU.

    Raises:
      Refused: libtpu is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise Refused(
            "libtpu, which has the TPU's compiler and exists for Linux on x86-64 only, is not "
            f"installed: {make_install_command('plan')}"
        )
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if tpu_slice.chip.name == "v4":  # else a device is a core, as it is on v2 and v3
        options["chip_config_name"] = "megacore"
    if tpu_slice.num_slices > 1:
        options["num_slices"] = tpu_slice.num_slices
    try:
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=tpu_slice.name, **options
        )
    except jax.errors.JaxRuntimeError as error:
        raise Refused(
            f"--topology={tpu_slice.name}: this libtpu does not know it ({error}); install another "
            "version of libtpu, or plan for another slice"
        ) from error
    return list(topology.devices)
