"""Make the device mesh, map logical axes to it, and place batches.

Every array of the model names its dimensions by logical axes; RULES alone maps them to mesh axes:

    slice   TPU slices, each with shards of the batch and a copy of the weights
    data    shards of the batch. zero1 also shards weights and optimizer state over it between steps
    fsdp    as data, with weights and optimizer state sharded along their width and gathered for use
    model   heads, feed-forward units and vocabulary rows sharded (tensor parallel)

The chips of a slice are wired to each other (ICI); slices meet over the data-center network. So
only sums of gradients cross slices, and each chip sends only the part of the sum that it keeps.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.config import (
    RELATION_DISTILLATION,
    Config,
    FinetuneConfig,
    MeshConfig,
    ModelConfig,
    RunConfig,
    list_objectives,
    model_in_phase,
)
from data_pipeline.io import Refused


def group_by_slice(devices: Sequence[Any], num_slices: int) -> list[list[Any]]:
    """Group devices by TPU slice, in order; Refused unless they form num_slices equal slices."""
    if num_slices == 1 and devices[0].platform != "tpu":
        return [list(devices)]  # slice_index of other platforms counts hosts, not slices
    missing = getattr(devices[0], "slice_index", None) is None
    if missing and num_slices > 1:
        raise Refused(
            f"config.mesh.num_slices is {num_slices}, but {devices[0].platform} devices have "
            "no slice_index, which TPU slices have; set it to 1"
        )
    members: dict[int, list[Any]] = {}
    for device in devices:
        members.setdefault(0 if missing else device.slice_index, []).append(device)
    slices = [members[number] for number in sorted(members)]
    sizes = [len(devices) for devices in slices]
    if len(members) != num_slices:
        raise Refused(
            f"config.mesh.num_slices is {num_slices}, but the {len(devices)} devices form "
            f"{len(members)} slices; set it to {len(members)}"
        )
    if len(set(sizes)) > 1:
        raise Refused(
            f"config.mesh.num_slices is {num_slices}, but these hold "
            f"{', '.join(map(str, sizes))} devices; join slices of one size"
        )
    return slices


def arrange_devices(
    sizes: tuple[int, int, int, int], slices: Sequence[Sequence[Any]]
) -> np.ndarray:
    """Arrange devices on the axes slice, data, fsdp and model.

    Shapes: object[slice, data, fsdp, model]. Inside a slice the order follows the wiring of its
    chips. Where data is the only axis the chips are taken row by row, so that transfers between
    neighbors and between chips one row apart (collectives.reduce_scatter) share no link.
    """
    _, *inside = sizes
    _, fsdp, model = inside
    if fsdp == model == 1 and slices[0][0].platform == "tpu":
        rows = [
            sorted(members, key=lambda device: (*device.coords, device.core_on_chip))
            for members in slices
        ]
        return np.array(rows).reshape(sizes)
    grids = [
        mesh_utils.create_device_mesh(inside, members, allow_split_physical_axes=True)
        for members in map(list, slices)
    ]
    return np.stack(grids)


AnyMesh = Mesh | jax.sharding.AbstractMesh
AXES = ("slice", "data", "fsdp", "model")
BATCH_AXES = ("slice", "data", "fsdp")
PRESETS = ("dp", "zero1", "fsdp", "tp")

# Mesh axis of each logical axis of weights and activations. An unsharded dimension has the logical
# axis None; an unknown name is a KeyError.
RULES: dict[str, str | tuple[str, ...]] = {
    "batch": BATCH_AXES,
    "vocab": "model",
    "heads": "model",
    "mlp": "model",
    "embed": "fsdp",
}

# Mesh axis over which each size of a model is divided; embedding_size is 0 if it is hidden_size.
_DIVIDED = {
    **dict.fromkeys(("num_attention_heads", "intermediate_size"), "model"),
    **dict.fromkeys(("hidden_size", "embedding_size"), "fsdp"),
}

VOCAB_TILE = 128  # lanes of a TPU register: vocabulary rows are padded to a multiple of it


def spec(*logical_axes: str | None) -> PartitionSpec:
    """Return the PartitionSpec of an array with these logical axes; None is not sharded.

    Axes that are manual in the current mesh are dropped: inside a shard_map each device sees only
    its own part.
    """
    whole = PartitionSpec(*(None if name is None else RULES[name] for name in logical_axes))
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return restrict_spec(whole, [axis for axis in AXES if axis not in manual]) if manual else whole


def restrict_spec(spec: PartitionSpec, axes: Collection[str]) -> PartitionSpec:
    """Return a spec with only these mesh axes."""

    def kept(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(axis for axis in entry if axis in axes) or None
        return entry if entry in axes else None

    return PartitionSpec(*map(kept, spec))


def parse_preset(config: MeshConfig) -> tuple[str, ...]:
    """Split `config.preset` into its parts; raise Refused if one is unknown."""
    parts = tuple(config.preset.split("+"))
    unknown = [part for part in parts if part not in PRESETS]
    if unknown:
        raise Refused(
            f"config.mesh.preset is {config.preset!r}; it must be one of {', '.join(PRESETS)}, "
            "or several of them joined by +, such as fsdp+tp"
        )
    return parts


def mesh_shape(config: MeshConfig, device_count: int) -> tuple[int, int, int, int]:
    """Compute the sizes of the AXES; raise Refused if they do not divide the devices."""
    parts = parse_preset(config)
    in_a_slice, left_over = divmod(device_count, config.num_slices)
    if left_over:
        raise Refused(
            f"config.mesh.num_slices is {config.num_slices}, which does not divide the "
            f"{device_count} devices; set it to the number of their TPU slices"
        )
    model = config.model_size if "tp" in parts else 1
    rest, left_over = divmod(in_a_slice, model)
    if left_over:
        raise Refused(
            f"config.mesh.model_size is {model}, which does not divide the number of devices"
            f"{' of a slice' if config.num_slices > 1 else ''}, {in_a_slice}; try one of "
            f"{_divisors(in_a_slice)}, or a preset without tp"
        )
    fsdp = (config.fsdp_size or rest) if "fsdp" in parts else 1
    if rest % fsdp:
        raise Refused(
            f"config.mesh.fsdp_size is {fsdp}, which does not divide the {rest} devices left "
            f"next to the model axis; try one of {_divisors(rest)}, or 0 for all of them"
        )
    return config.num_slices, rest // fsdp, fsdp, model


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Make the mesh over these devices (default: all), with explicit axes.

    TPUs are ordered by the wiring of their chips, whatever order they are given in. Raises
    Refused if devices do not divide over the axes, or do not form num_slices slices.
    """
    chosen = list(jax.devices() if devices is None else devices)
    sizes = mesh_shape(config, len(chosen))
    slices = group_by_slice(chosen, config.num_slices)
    return Mesh(arrange_devices(sizes, slices), AXES, axis_types=(AxisType.Explicit,) * len(AXES))


def device_kind(mesh: AnyMesh) -> str:
    """Return what jax calls the devices of a mesh, such as TPU v5 lite; "" if it does not know."""
    device = mesh.abstract_mesh.abstract_device
    return "" if device is None else device.device_kind


def platform(mesh: AnyMesh) -> str:
    """Return the platform of a mesh's devices, such as "gpu"; it need not be this process's."""
    device = mesh.abstract_mesh.abstract_device
    return jax.default_backend() if device is None else str(device.platform)


def describe_axes(sizes: Mapping[str, int]) -> str:
    """Describe the mesh axes for the screen: data, and all others with more than one device."""
    return " x ".join(
        f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "data"
    )


def batch_shards(mesh: AnyMesh) -> int:
    """Count the shards of a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_unit(config: MeshConfig, device_count: int, micro_batches: int) -> int:
    """Return the number of rows that must divide the batch size."""
    *batch, _ = mesh_shape(config, device_count)
    return math.prod(batch) * micro_batches


def check_divides(config: RunConfig, device_count: int, teacher: ModelConfig | None = None) -> None:
    """Raise Refused, naming values that fit, if batch, model or teacher do not divide evenly."""
    *batch, model = mesh_shape(config.mesh, device_count)
    for index, phase in enumerate(config.phases):
        unit = batch_unit(config.mesh, device_count, phase.micro_batches)
        if phase.batch_size % unit:
            below = phase.batch_size // unit * unit
            near = [size for size in (below, below + unit) if size > 0]
            part = "" if isinstance(config, FinetuneConfig) else f"phases[{index}]."
            raise Refused(
                f"config.{part}batch_size is {phase.batch_size}, not a multiple of "
                f"{unit} ({math.prod(batch)} devices on mesh axes slice*data*fsdp x "
                f"{phase.micro_batches} micro-batches); try {' or '.join(map(str, near))}"
            )
    owners = {
        "model.": config.model,
        "model.generator_": config.model.generator,
        "teacher's ": teacher,
    }
    divided = [
        (f"{owner}{name}", getattr(sizes, name), axis)
        for owner, sizes in owners.items()
        for name, axis in _DIVIDED.items()
        if sizes is not None
    ]
    if isinstance(config, FinetuneConfig):  # 0 if nothing is pruned, or without LSTMs
        divided.append(("prune.intermediate_size", config.prune.intermediate_size, "model"))
        divided.append(("model.bilstm_units", config.model.bilstm_units, "fsdp"))
    if isinstance(config, Config) and RELATION_DISTILLATION in list_objectives(config):
        divided.append(("distill.relation_heads", config.distill.relation_heads, "model"))
    parts = {"model": model, "fsdp": batch[-1]}
    for name, size, axis in divided:
        if size % parts[axis]:
            raise Refused(
                f"config.{name} is {size}, not a multiple of the {parts[axis]} devices on mesh "
                f"axis {axis}; set config.mesh.{axis}_size to a divisor of {size}"
            )
    for index in range(len(config.phases)):
        neurons = model_in_phase(config, index).intermediate_size
        if isinstance(config, FinetuneConfig) and neurons % model:
            raise Refused(
                f"config.prune.rounds is {config.prune.rounds}, and {neurons} neurons are left "
                f"after a round, not a multiple of the {model} devices on mesh axis model; try "
                "another number, or 1"
            )


def padded_vocab_size(vocab_size: int, model_size: int) -> int:
    """Round the rows of the vocabulary up to complete tiles on every device of the model axis."""
    tile = VOCAB_TILE * model_size
    return -(-vocab_size // tile) * tile


def shard_over_data(
    spec: PartitionSpec, dims: Sequence[int], sizes: Mapping[str, int]
) -> PartitionSpec:
    """Shard over the data axis the first unsharded dimension that the axis divides (ZeRO-1).

    `sizes` are the sizes of the mesh axes; a dimension on an axis of size 1 counts as unsharded.
    An array without such a dimension keeps its spec.

    Source: Rajbhandari et al. 2020, "ZeRO", stage 1.
    """
    axes = list(spec) + [None] * (len(dims) - len(spec))
    data_size = sizes["data"]
    for dim, size in enumerate(dims):
        is_whole = axes[dim] is None or sizes[axes[dim]] == 1
        if data_size > 1 and is_whole and size % data_size == 0:
            axes[dim] = "data"
            return PartitionSpec(*axes)
    return spec


def batch_sharding(mesh: Mesh, ndim: int) -> NamedSharding:
    """Return the sharding of an array of a batch: along its first dimension."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES, *(None,) * (ndim - 1)))


def abstract_batch(
    fields: Mapping[str, tuple[tuple[int, ...], Any]], mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Describe a global batch by the dimensions and dtype of each field, for compilation."""
    return {
        name: jax.ShapeDtypeStruct(dims, dtype, sharding=batch_sharding(mesh, len(dims)))
        for name, (dims, dtype) in fields.items()
    }


def process_rows(batch_size: int, mesh: Mesh) -> np.ndarray:
    """Return the rows of a batch that devices of this process store: int64[n], ascending.

    A mesh follows the wiring of its chips, so these rows need not be adjacent. If the model axis
    spans processes, several of them store the same row.
    """
    indices = batch_sharding(mesh, 1).addressable_devices_indices_map((batch_size,))
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices.values()]))


def place_batch_rows(
    batch: Mapping[str, np.ndarray], mesh: Mesh, batch_size: int, rows: np.ndarray
) -> dict[str, jax.Array]:
    """Make global arrays, sharded over the batch, from the rows that this process has."""

    def placed(array: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:  # slices of the global array
            return array[np.searchsorted(rows, np.arange(batch_size)[index[0]])]

        dims = (batch_size, *array.shape[1:])
        return jax.make_array_from_callback(dims, batch_sharding(mesh, array.ndim), part)

    return {name: placed(array) for name, array in batch.items()}


def place_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Make global arrays, sharded over the batch, from a complete batch on every process."""
    batch_size = len(next(iter(batch.values())))
    return place_batch_rows(batch, mesh, batch_size, np.arange(batch_size))
