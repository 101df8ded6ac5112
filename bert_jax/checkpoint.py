"""Checkpoints of a run through Orbax: saved in the background, the newest kept, restored anywhere.

A checkpoint holds the state without the rows that pad the vocabulary, so it can be restored onto a
mesh that pads it otherwise, and the loop's plain numbers as JSON.
"""

import pathlib
import shutil
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import PartitionSpec

from bert_jax.config import CheckpointConfig
from bert_jax.models.bert import Declared, Model, Params
from bert_jax.state import TrainState, map_like_params
from data_pipeline.files import is_address

STATE, NUMBERS = "state", "numbers"
_ARRAYS_OF_STATE = 3  # of float32: the parameters and the optimiser's two moments

Folder: TypeAlias = pathlib.Path | epath.Path  # on a local disk, or gs://


def _absolute(directory: Folder) -> epath.Path:
    """As Orbax wants it. epath would make an address into a path below the current folder."""
    path = epath.Path(directory)
    return path if is_address(str(path)) else path.resolve()


def _whole_where_padded(of: Declared) -> PartitionSpec:
    """The spec of a leaf without padding rows: a dimension that loses rows cannot stay cut."""
    return PartitionSpec(
        *(
            None if held != real else axis
            for held, real, axis in zip(of.dims, of.logical_dims, of.spec, strict=True)
        )
    )


def _without_padding(leaf: jax.Array, of: Declared) -> jax.Array:
    if of.dims == of.logical_dims:
        return leaf
    whole = jax.sharding.reshard(leaf, _whole_where_padded(of))
    return whole[tuple(slice(0, size) for size in of.logical_dims)]


def _with_padding(leaf: jax.Array, of: Declared) -> jax.Array:
    if of.dims == of.logical_dims:
        return leaf
    return jnp.pad(
        leaf, [(0, held - real) for held, real in zip(of.dims, of.logical_dims, strict=True)]
    )


def newest_step(directory: Folder) -> int | None:
    """Step of the newest finished checkpoint in a folder, None without any."""
    return max(ocp.utils.checkpoint_steps(directory), default=None) if directory.is_dir() else None


def check_space(directory: Folder, config: CheckpointConfig, model: Model) -> None:
    """Raise if the disk cannot hold the checkpoints that a run keeps, and the next beside them.

    A bucket has no end.

    Raises:
      ValueError: names the disk, what is free and what is needed.
    """
    if is_address(str(directory)):
        return
    there = pathlib.Path(directory).resolve()
    missing = config.keep + 1
    if there.is_dir():
        missing = max(1, missing - len(ocp.utils.checkpoint_steps(there)))
    while not there.exists():
        there = there.parent
    needed = missing * _ARRAYS_OF_STATE * 4 * model.parameter_count
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ValueError(
            f"{there} has {free / 1e9:,.2f} GB free, the {config.keep} checkpoints of this run and "
            f"the next one take {needed / 1e9:,.2f} GB; free space, put --workdir on another disk, "
            "or keep fewer with --config.checkpoint.keep=1"
        )


def _check_shapes(checkpoint: epath.Path, model: Model) -> None:
    """Raise if another version of bert_jax gave a parameter another shape."""
    stored = ocp.PyTreeCheckpointHandler().metadata(checkpoint / STATE).tree["params"]
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(stored)
    }
    for path, of in jax.tree_util.tree_leaves_with_path(model.declared):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if shapes.get(name) != of.logical_dims:
            raise ValueError(
                f"{checkpoint} holds {name} of shape {shapes.get(name)}, this bert_jax has it as "
                f"{of.logical_dims}; use the version that wrote it, or train in a new --workdir"
            )


class Checkpoints:
    """The checkpoints in a folder. Every call into Orbax is here.

    Must be closed: a process that exits without leaves its last save unfinished.
    """

    def __init__(self, directory: Folder, config: CheckpointConfig, model: Model) -> None:
        self._model = model
        self._every_steps = config.every_steps
        self._manager = ocp.CheckpointManager(
            _absolute(directory),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=config.keep,
                cleanup_tmp_directories=True,
                enable_async_checkpointing=True,
            ),
        )

    @property
    def latest_step(self) -> int | None:
        """Step of the newest checkpoint, None without any."""
        step = self._manager.latest_step()
        return None if step is None else int(step)

    def due(self, step: int) -> bool:
        """Whether a run is to be saved after this many steps."""
        return step % self._every_steps == 0

    def save(self, step: int, state: TrainState, numbers: dict[str, Any]) -> None:
        """Begin to save; returns as soon as the state's memory may be reused.

        An error of the save before this one is raised here.
        """
        if self.latest_step == step:
            return
        unpadded = map_like_params(_without_padding, state, self._model.declared)
        self._manager.save(
            step,
            args=ocp.args.Composite(
                **{
                    STATE: ocp.args.StandardSave(unpadded),
                    NUMBERS: ocp.args.JsonSave(numbers),
                }
            ),
        )

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The newest checkpoint, laid out as abstract says; there must be one.

        Raises:
          ValueError: its parameters have other shapes.
        """
        self._manager.wait_until_finished()
        _check_shapes(self._manager.directory / str(self.latest_step), self._model)
        logical = map_like_params(
            lambda leaf, of: jax.ShapeDtypeStruct(
                of.logical_dims,
                leaf.dtype,
                sharding=jax.NamedSharding(
                    leaf.sharding.mesh,
                    leaf.sharding.spec if of.dims == of.logical_dims else _whole_where_padded(of),
                ),
            ),
            abstract,
            self._model.declared,
        )
        restored = self._manager.restore(
            self.latest_step,
            args=ocp.args.Composite(
                **{STATE: ocp.args.StandardRestore(logical), NUMBERS: ocp.args.JsonRestore()}
            ),
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        padded = map_like_params(_with_padding, restored[STATE], self._model.declared)
        return jax.device_put(padded, shardings), restored[NUMBERS]

    def close(self) -> None:
        """Wait until the last save is finished; raises its error."""
        self._manager.wait_until_finished()
        self._manager.close()


def restore_params(directory: Folder, step: int, model: Model, on: jax.sharding.Mesh) -> Params:
    """The parameters alone of a checkpoint, laid out on a mesh as the model says.

    Only reads: a run may be saving into the folder meanwhile.

    Raises:
      ValueError: they have other shapes.
    """
    checkpoint = _absolute(directory) / str(step)
    _check_shapes(checkpoint, model)

    def logical(of: Declared) -> jax.ShapeDtypeStruct:
        sharding = jax.NamedSharding(on, _whole_where_padded(of))
        return jax.ShapeDtypeStruct(of.logical_dims, jnp.float32, sharding=sharding)

    wanted = {"params": jax.tree.map(logical, model.declared)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        restored = checkpointer.restore(
            checkpoint / STATE,
            args=ocp.args.PyTreeRestore(
                wanted,
                restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
                partial_restore=True,
            ),
        )
    return jax.tree.map(_with_padding, restored["params"], model.declared)
