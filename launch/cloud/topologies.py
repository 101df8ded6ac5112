"""List the TPU slices that the scripts can create, and Google Cloud's names for each."""

import dataclasses
import itertools
import json
import math
import pathlib

from .text import refuse

# Next to launch/ in a clone, above it in a wheel.
_PARENTS = pathlib.Path(__file__).parents[2:4]
PRICES = [folder / "bert_jax" / "planning" / "prices.json" for folder in _PARENTS]
# Chips per machine in slices of several hosts.
CHIPS_PER_HOST = 4
# Topologies of two and of three dimensions; a larger box is of cubes of 4x4x4. Edges ascend: Google
# knows no other order, neither in a request nor on a node pool.
_SQUARES = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BOXES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_EDGES = itertools.combinations_with_replacement((4, 8, 12, 16, 20, 24), 3)
_CUBES = ["x".join(map(str, edges)) for edges in _EDGES]


@dataclasses.dataclass(frozen=True)
class Generation:
    """Name one TPU generation as each of Google's services does.

    max_chips: of a box (tpu/docs/v4, v5p, tpu7x); 0 where slices have two edges. roads: the ways
    to create a slice, the default first. queued: prefix of the accelerator type and what it counts
    per chip, and the runtime version of the Cloud TPU API. machine, image: machine type and
    image family on Compute Engine. gke: value of the node label gke-tpu-accelerator.
    """

    max_chips: int
    roads: tuple[str, ...]
    gke: str
    machine: str = ""
    queued: tuple[str, int, str] = ("", 0, "")
    image: str = ""


_IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
# Sources: cloud.google.com/tpu/docs/runtimes (runtime versions), /tpu/docs/tpus-and-migs (groups:
# v5p, v6e, tpu7x), GKE's "About TPUs"; images: gke-labs/tpu-operator, vllm-project/ci-infra.
_QUEUED, _BOTH = ("queued", "gke"), ("compute_engine", "queued", "gke")
_V4 = ("v4", 2, "tpu-ubuntu2204-base")
_V5E, _V5P = ("v5litepod", 1, "v2-alpha-tpuv5-lite"), ("v5p", 2, "v2-alpha-tpuv5")
_V6E, _TPU7X = ("v6e", 1, "v2-alpha-tpuv6e"), "ubuntu-accel-2404-amd64-tpu-tpu7x"
GENERATIONS = {
    "v4": Generation(4096, _QUEUED, "tpu-v4-podslice", queued=_V4),
    "v5e": Generation(0, _QUEUED, "tpu-v5-lite-podslice", queued=_V5E),
    "v5p": Generation(6144, _BOTH, "tpu-v5p-slice", "ct5p-hightpu-4t", _V5P, _IMAGE),
    "v6e": Generation(0, _BOTH, "tpu-v6e-slice", "ct6e-standard-4t", _V6E, _IMAGE),
    "tpu7x": Generation(
        9216, ("compute_engine", "gke"), "tpu7x", "tpu7x-standard-4t", image=_TPU7X
    ),
}
ROADS = ("queued", "compute_engine", "gke")


@dataclasses.dataclass(frozen=True)
class Slice:
    """Hold a slice such as v5e:8x8, the ROAD that creates it, and its chips and hosts."""

    name: str
    topology: str
    road: str
    generation: Generation
    chips: int
    hosts: int

    @property
    def accelerator_type(self) -> str:
        """Return the Cloud TPU API's name of the slice."""
        prefix, per_chip, _ = self.generation.queued
        return f"{prefix}-{self.chips * per_chip}"

    def price(self) -> float | None:
        """Return the dollars per chip-hour on demand, or None where they are not known."""
        path = next(filter(pathlib.Path.exists, PRICES), None)
        rows = json.loads(path.read_text())["prices"] if path else []
        return next((row["usd_on_demand"] for row in rows if row["chip"] == self.name), None)


def _count_chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


def find_slice(topology: str, road: str, origin: str) -> Slice:
    """Return the slice of TOPOLOGY on ROAD; an empty road is the generation's default.

    Exits with 2 where no road offers it.
    """
    name, _, shape = topology.partition(":")
    if name not in GENERATIONS:
        known = ", ".join(GENERATIONS)
        refuse(f"{origin}: TOPOLOGY is '{topology}', none of {known}; such as TOPOLOGY=v5e:8x8")
    generation = GENERATIONS[name]
    road = road or generation.roads[0]
    if road not in generation.roads:
        roads = " or ".join(generation.roads)
        refuse(f"{origin}: TOPOLOGY={topology} is not offered on ROAD={road}, only on {roads}")
    limit = generation.max_chips
    shapes, more = (_BOXES if limit else _SQUARES), ""
    if limit:
        more = f" or ascending edges of 4, 8, 12, 16, 20 or 24 with at most {limit} chips"
    cubes = [box for box in _CUBES if _count_chips(box) <= limit]
    if shape not in shapes and shape not in cubes:
        refuse(
            f"{origin}: TOPOLOGY is '{topology}', and {name} has slices of {', '.join(shapes)}"
            f"{more}; such as TOPOLOGY={name}:{shapes[-1]}"
        )
    chips = _count_chips(shape)
    # An accelerator type names chips; Google makes the box of them that is nearest to a cube.
    same = [box for box in (shape, *cubes) if _count_chips(box) == chips]
    box = min(same, key=lambda box: sum(map(int, box.split("x"))))
    if road == "queued" and box != shape:
        refuse(
            f"{origin}: TOPOLOGY={topology} is not offered on ROAD=queued, where {chips} chips are"
            f" a slice of {box}; take TOPOLOGY={name}:{box}, or ROAD={generation.roads[-1]}"
        )
    return Slice(name, shape, road, generation, chips, chips // CHIPS_PER_HOST)
