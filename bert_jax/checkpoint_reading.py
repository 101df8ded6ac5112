"""Checkpoints as they lie on a disk or in a bucket, read with Orbax; nothing is written.

A run may be saving into the folder meanwhile.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax import checkpoint_arrays, checkpoint_folder
from bert_jax.checkpoint_choice import in_words, none_is_whole
from bert_jax.checkpoint_folder import Folder
from bert_jax.models.bert import Declared, Model, Params
from data_pipeline.small_files import DamagedFile

STATE = "state"
_STEP = re.compile(r"0|[1-9][0-9]*")  # 070 is no second name of 70
_SIZES = re.compile(r"\w+\[(\d{1,18}(?:,\d{1,18})*)\]")  # in float32[211,32]


def folders(directory: epath.Path) -> dict[int, epath.Path]:
    """What lies in a folder under the name of a step, newest first; half-written steps do not."""
    if not directory.is_dir():
        return {}
    paths = ocp.path.step.checkpoint_steps_paths(directory)
    found = {int(path.name): path for path in paths if _STEP.fullmatch(path.name)}
    return dict(sorted(found.items(), reverse=True))


def readable(directory: epath.Path) -> tuple[int | None, list[str]]:
    """Step of the newest checkpoint with a receipt, and what is wrong with those after it."""
    damaged = []
    for step, path in folders(directory).items():
        try:
            checkpoint_folder.read_receipt(path)
        except ValueError as error:
            if checkpoint_folder.holds_files(path):
                damaged.append(str(error))
            continue
        return step, damaged
    return None, damaged


def newest_step(directory: Folder) -> int | None:
    """Step of the newest checkpoint in a folder whose receipt can be read, None without any.

    Raises:
      Refused: something is there, but no checkpoint that can be read.
    """
    step, damaged = readable(checkpoint_folder.absolute(directory))
    if step is None and damaged:
        raise none_is_whole(directory, damaged)
    return step


def newest_run(directory: Folder) -> dict[str, Any]:
    """Return what the newest checkpoint's receipt says of the run that saved it; {} without any."""
    step, _ = readable(checkpoint_folder.absolute(directory))
    return {} if step is None else run_metadata(directory, step)


def arrays_of(checkpoint: epath.Path, wanted: Any) -> Any:
    """Arrays of a checkpoint, laid out as wanted says. Processes do not wait for each other.

    Raises:
      ValueError: a file is not as it was written.
    """
    checkpoint_folder.check_json(
        [checkpoint / STATE / "_METADATA", *(checkpoint / STATE / "array_metadatas").glob("*")]
    )
    args = ocp.args.PyTreeRestore(
        wanted,
        restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
        partial_restore=True,
    )
    try:
        return ocp.PyTreeCheckpointHandler().restore(checkpoint / STATE, args=args)
    except Exception as error:
        # Orbax wraps what TensorStore says about a chunk into a bare Exception that says less.
        if type(error) is Exception and isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


def restore_params(directory: Folder, step: int, model: Model, on: jax.sharding.Mesh) -> Params:
    """The parameters alone of a checkpoint, laid out on a mesh as the model says.

    Raises:
      ValueError: they have other shapes, or are damaged.
    """
    checkpoint = checkpoint_folder.absolute(directory) / str(step)

    def logical(of: Declared) -> jax.ShapeDtypeStruct:
        sharding = jax.NamedSharding(on, checkpoint_arrays.whole_where_padded(of))
        return jax.ShapeDtypeStruct(of.logical_dims, jnp.float32, sharding=sharding)

    wanted = {"params": jax.tree.map(logical, model.declared)}
    receipt = checkpoint_folder.read_receipt(checkpoint)
    held = {name: kind for name, kind in receipt["leaves"].items() if name.startswith("params/")}
    checkpoint_arrays.check(checkpoint, {**receipt, "leaves": held}, wanted)
    try:
        restored = arrays_of(checkpoint, wanted)
        problem = checkpoint_arrays.unverified(checkpoint, restored, wanted, held)
    except Exception as error:
        problem = in_words(error, checkpoint)
    if problem:
        raise ValueError(
            f"{problem}; start the training command again, which goes on from the newest "
            "checkpoint that is whole"
        )
    return jax.tree.map(checkpoint_arrays.with_padding, restored["params"], model.declared)


def run_metadata(directory: Folder, step: int) -> dict[str, Any]:
    """Return what a checkpoint says of the run that saved it: receipt.of_run at that time.

    Raises:
      ValueError: its metadata cannot be read.
    """
    checkpoint = checkpoint_folder.absolute(directory) / str(step)
    return dict(checkpoint_folder.read_receipt(checkpoint)["run"])


def param_dims(directory: Folder, step: int) -> dict[str, tuple[int, ...]]:
    """Sizes of the parameters of a checkpoint by their paths, as its receipt has them.

    Raises:
      ValueError: the receipt cannot be read.
    """
    found = {}
    receipt = checkpoint_folder.read_receipt(checkpoint_folder.absolute(directory) / str(step))
    for name, kind in receipt["leaves"].items():
        if name.startswith("params/"):
            sizes = _SIZES.match(kind)
            if sizes is None:
                raise DamagedFile(f"checkpoint {step} of {directory} has {name} as {kind!r:.80}")
            found[name.removeprefix("params/")] = tuple(map(int, sizes[1].split(",")))
    return found


def read_arrays(directory: Folder, step: int) -> dict[str, np.ndarray]:
    """Every array of a checkpoint as it lies there, by its path; nothing is verified."""
    state = checkpoint_folder.absolute(directory) / str(step) / STATE
    handler = ocp.PyTreeCheckpointHandler()
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    args = jax.tree.map(lambda _: as_numpy, handler.metadata(state).tree)
    tree = handler.restore(state, args=ocp.args.PyTreeRestore(restore_args=args))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
