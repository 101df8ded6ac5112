"""List the TPU slices that the scripts can create, and Google Cloud's names for each."""

import dataclasses
import json
import math
import pathlib
import re

from .text import refuse

PRICES = pathlib.Path(__file__).parents[2] / "bert_jax" / "planning" / "prices.json"
# Slices of several hosts have machines of so many chips.
CHIPS_PER_HOST = 4
MAX_CHIPS = 9216


@dataclasses.dataclass(frozen=True)
class Generation:
    """Name one TPU generation as Google's services do.

    dims: edges of a topology. road: how a slice is created, unless by gke, which takes all. node:
    value of the label gke-tpu-accelerator. machine, system: machine type and image family on
    compute_engine; on queued the prefix of the accelerator type, which counts `units` per chip, and
    the runtime version.
    """

    dims: int
    road: str
    node: str
    machine: str
    system: str
    units: int = 1


_IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
_IMAGE_7X = "ubuntu-accel-2404-amd64-tpu-tpu7x"
_V4, _V5E = ("v4", "tpu-ubuntu2204-base", 2), ("v5litepod", "v2-alpha-tpuv5-lite")
# Sources: cloud.google.com/tpu/docs/runtimes (runtime versions), /tpu/docs/tpus-and-migs (groups:
# v5p, v6e, tpu7x), GKE's "About TPUs"; images: gke-labs/tpu-operator, vllm-project/ci-infra.
GENERATIONS = {
    "v4": Generation(3, "queued", "tpu-v4-podslice", *_V4),
    "v5e": Generation(2, "queued", "tpu-v5-lite-podslice", *_V5E),
    "v5p": Generation(3, "compute_engine", "tpu-v5p-slice", "ct5p-hightpu-4t", _IMAGE),
    "v6e": Generation(2, "compute_engine", "tpu-v6e-slice", "ct6e-standard-4t", _IMAGE),
    "tpu7x": Generation(3, "compute_engine", "tpu7x", "tpu7x-standard-4t", _IMAGE_7X),
}
ROADS = ("queued", "compute_engine", "gke")


@dataclasses.dataclass(frozen=True)
class Slice:
    """Hold a slice such as v5e:8x8, the road on which it is created, and its chips."""

    name: str
    topology: str
    road: str
    generation: Generation
    chips: int

    @property
    def hosts(self) -> int:
        """Return the number of machines."""
        return self.chips // CHIPS_PER_HOST

    def price(self) -> float | None:
        """Return the dollars per chip-hour on demand, or None where they are not known."""
        if not PRICES.exists():
            return None
        rows = json.loads(PRICES.read_text())["prices"]
        return next((row["usd_on_demand"] for row in rows if row["chip"] == self.name), None)


def find_slice(topology: str, road: str, origin: str) -> Slice:
    """Return the slice of TOPOLOGY on ROAD; an empty road is the generation's default.

    Exits with 2 where no road offers it.
    """
    name, _, shape = topology.partition(":")
    if name not in GENERATIONS:
        known = ", ".join(GENERATIONS)
        refuse(f"{origin}: TOPOLOGY is '{topology}', none of {known}; such as TOPOLOGY=v5e:8x8")
    generation = GENERATIONS[name]
    road = road or generation.road
    if road not in (generation.road, "gke"):
        roads = f"{generation.road} or gke"
        refuse(f"{origin}: TOPOLOGY={topology} is not offered on ROAD={road}, only on {roads}")
    is_shape = re.fullmatch("x".join([r"[1-9]\d?"] * generation.dims), shape)
    chips = math.prod(map(int, shape.split("x"))) if is_shape else 0
    if chips % CHIPS_PER_HOST or not 0 < chips <= MAX_CHIPS:
        example = "8x8" if generation.dims == 2 else "4x4x4"
        refuse(
            f"{origin}: TOPOLOGY is '{topology}', which is no slice of {name} with "
            f"{CHIPS_PER_HOST} chips per host; try TOPOLOGY={name}:{example}"
        )
    return Slice(name, shape, road, generation, chips)
