"""The device mesh: its axes, which logical axis lies on which of them, presets, placing a batch.

Every array of the model names its dimensions by logical axes; this table alone says where they go:

    data    parts of the batch; alone spans several slices. zero1 cuts weights and optimiser state
            over it too, from one step to the next
    fsdp    as data, with weights and optimiser state cut along their width and gathered for use
    model   heads, feed-forward units and vocabulary rows cut apart (tensor parallel)
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax import device_grid
from bert_jax.config import MeshConfig
from bert_jax.run_config import RunConfig

AXES = ("data", "fsdp", "model")
BATCH_AXES = ("data", "fsdp")
PRESETS = ("dp", "zero1", "fsdp", "tp")

# Axes of weights and of activations. A name that is absent here would be a KeyError: None is the
# way to say that a dimension is whole on every device.
RULES: dict[str, str | tuple[str, ...]] = {
    "batch": BATCH_AXES,
    "vocab": "model",
    "heads": "model",
    "mlp": "model",
    "embed": "fsdp",
}

VOCAB_TILE = 128  # lanes of a TPU register: vocabulary rows are padded to a multiple of it


def spec(*logical_axes: str | None) -> PartitionSpec:
    """PartitionSpec of an array whose dimensions have these logical names; None is not sharded.

    Axes that are manual here are left out: inside a shard_map each device has its own part.
    """
    whole = PartitionSpec(*(None if name is None else RULES[name] for name in logical_axes))
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return only(whole, [axis for axis in AXES if axis not in manual]) if manual else whole


def only(of: PartitionSpec, axes: Collection[str]) -> PartitionSpec:
    """What a spec says of these axes of the mesh."""

    def kept(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(axis for axis in entry if axis in axes) or None
        return entry if entry in axes else None

    return PartitionSpec(*map(kept, of))


def gathered(of: PartitionSpec) -> PartitionSpec:
    """The spec of a weight in use: whole along fsdp, still cut along model."""
    return PartitionSpec(*(None if axis == "fsdp" else axis for axis in of))


def presets(config: MeshConfig) -> tuple[str, ...]:
    """The parts of `config.preset`.

    Raises:
      ValueError: a part is unknown.
    """
    parts = tuple(config.preset.split("+"))
    unknown = [part for part in parts if part not in PRESETS]
    if unknown:
        raise ValueError(
            f"config.mesh.preset is {config.preset!r}; it must be one of {', '.join(PRESETS)}, "
            "or several of them joined by +, such as fsdp+tp"
        )
    return parts


def shape(config: MeshConfig, device_count: int) -> tuple[int, int, int]:
    """Devices on the axes data, fsdp and model.

    Raises:
      ValueError: the devices do not divide so.
    """
    parts = presets(config)
    in_a_slice, left_over = divmod(device_count, config.num_slices)
    if left_over:
        raise ValueError(
            f"config.mesh.num_slices is {config.num_slices}, which does not divide the "
            f"{device_count} devices; set it to the number of TPU slices that they lie in"
        )
    model = config.model_size if "tp" in parts else 1
    rest, left_over = divmod(in_a_slice, model)
    if left_over:
        raise ValueError(
            f"config.mesh.model_size is {model}, which does not divide the {in_a_slice} devices"
            f"{' of a slice' if config.num_slices > 1 else ''}; try one of {_divisors(in_a_slice)}"
        )
    fsdp = (config.fsdp_size or rest) if "fsdp" in parts else 1
    if rest % fsdp:
        raise ValueError(
            f"config.mesh.fsdp_size is {fsdp}, which does not divide the {rest} devices left "
            f"beside the model axis; try one of {_divisors(rest)}, or 0 for all of them"
        )
    return config.num_slices * rest // fsdp, fsdp, model


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def make(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over these devices (all of them by default), layouts being part of array types.

    TPUs follow the wiring of their chips, whatever order they are given in.

    Raises:
      ValueError: the devices do not divide so, or do not lie in config.num_slices slices.
    """
    chosen = list(jax.devices() if devices is None else devices)
    sizes = shape(config, len(chosen))
    explicit = (AxisType.Explicit,) * len(AXES)
    slices = device_grid.of_slices(chosen, config.num_slices)
    if devices is None or config.num_slices > 1 or chosen[0].platform == "tpu":
        return Mesh(device_grid.arranged(sizes, slices), AXES, axis_types=explicit)
    return Mesh(np.array(chosen).reshape(sizes), AXES, axis_types=explicit)


def batch_shards(of: Mesh | jax.sharding.AbstractMesh) -> int:
    """Into how many parts a batch is cut."""
    return math.prod(of.shape[axis] for axis in BATCH_AXES)


def batch_unit(config: MeshConfig, device_count: int, micro_batches: int) -> int:
    """What the rows of a batch are a multiple of."""
    data, fsdp, _ = shape(config, device_count)
    return data * fsdp * micro_batches


def check(config: RunConfig, device_count: int) -> None:
    """Raise if the batch or the model does not divide over the mesh.

    Raises:
      ValueError: names the key, its value, and values that would do.
    """
    data, fsdp, model = shape(config.mesh, device_count)
    for index, phase in enumerate(config.phases):
        unit = batch_unit(config.mesh, device_count, phase.micro_batches)
        if phase.batch_size % unit:
            below = phase.batch_size // unit * unit
            near = [size for size in (below, below + unit) if size > 0]
            raise ValueError(
                f"config.phases[{index}].batch_size is {phase.batch_size}, not a multiple of "
                f"{unit} ({data * fsdp} devices on mesh axes data*fsdp x {phase.micro_batches} "
                f"micro-batches); try {' or '.join(map(str, near))}"
            )
    for name, parts in (
        ("num_attention_heads", model),
        ("intermediate_size", model),
        ("hidden_size", fsdp),
    ):
        size = getattr(config.model, name)
        if size % parts:
            axis = "fsdp" if name == "hidden_size" else "model"
            raise ValueError(
                f"config.model.{name} is {size}, not a multiple of the {parts} devices on mesh "
                f"axis {axis}; set config.mesh.{axis}_size to a divisor of {size}"
            )


def padded_vocab_size(vocab_size: int, model_size: int) -> int:
    """Vocabulary rows held in memory: whole tiles on every device of the model axis."""
    tile = VOCAB_TILE * model_size
    return -(-vocab_size // tile) * tile


def over_data(of: PartitionSpec, dims: Sequence[int], sizes: Mapping[str, int]) -> PartitionSpec:
    """Cut the first whole dimension that the data axis divides over it as well (ZeRO-1).

    sizes are those of the mesh's axes; a dimension that lies on an axis of one device is whole. An
    array without such a dimension keeps its spec.
    """
    axes = list(of) + [None] * (len(dims) - len(of))
    data_size = sizes["data"]
    for dim, size in enumerate(dims):
        is_whole = axes[dim] is None or sizes[axes[dim]] == 1
        if data_size > 1 and is_whole and size % data_size == 0:
            axes[dim] = "data"
            return PartitionSpec(*axes)
    return of


def batch_sharding(of: Mesh, ndim: int) -> NamedSharding:
    """The layout of an array of a batch: cut along its first dimension."""
    return NamedSharding(of, PartitionSpec(BATCH_AXES, *(None,) * (ndim - 1)))


def abstract_batch(
    shape: Mapping[str, tuple[tuple[int, ...], Any]], of: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """A global batch without its numbers, from the dimensions and dtype of each field."""
    return {
        name: jax.ShapeDtypeStruct(dims, dtype, sharding=batch_sharding(of, len(dims)))
        for name, (dims, dtype) in shape.items()
    }


def process_rows(batch_size: int, of: Mesh) -> np.ndarray:
    """int64[n]: the rows of a batch that devices of this process hold, ascending.

    A mesh follows the wiring of its chips, so these need not be neighbours, and where the model
    axis spans processes several of them hold the same row.
    """
    held = batch_sharding(of, 1).addressable_devices_indices_map((batch_size,))
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in held.values()]))


def place_rows(
    batch: Mapping[str, np.ndarray], of: Mesh, batch_size: int, rows: np.ndarray
) -> dict[str, jax.Array]:
    """Make global arrays, cut over the batch, of the rows of a batch that this process has."""

    def placed(array: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:  # slices of the global array
            return array[np.searchsorted(rows, np.arange(batch_size)[index[0]])]

        shape = (batch_size, *array.shape[1:])
        return jax.make_array_from_callback(shape, batch_sharding(of, array.ndim), part)

    return {name: placed(array) for name, array in batch.items()}


def place(batch: Mapping[str, np.ndarray], of: Mesh) -> dict[str, jax.Array]:
    """Make global arrays, cut over the batch, of a batch that every process has whole."""
    batch_size = len(next(iter(batch.values())))
    return place_rows(batch, of, batch_size, np.arange(batch_size))
