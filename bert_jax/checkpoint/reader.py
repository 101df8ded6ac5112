"""Read checkpoints from a disk or bucket with Orbax, without writing anything.

This is safe while a run is saving into the folder.
"""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.checkpoint import arrays
from bert_jax.checkpoint import directory as directory_lib
from bert_jax.checkpoint.directory import STATE, Folder, find_steps, locate
from bert_jax.config import MeshConfig
from bert_jax.model.bert import Model, Params
from bert_jax.model.layers import Declared
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import run_record
from data_pipeline.io import Refused, small_files
from data_pipeline.io.errors import explain
from data_pipeline.io.small_files import DamagedFile

_SIZES = re.compile(r"\w+\[(\d{1,18}(?:,\d{1,18})*)\]")  # matches float32[211,32]


def find_readable_step(directory: epath.Path) -> tuple[int | None, list[str]]:
    """Return the newest step with an intact receipt, and the problems found in later steps."""
    damaged = []
    for step, path in find_steps(directory).items():
        try:
            directory_lib.read_receipt(path)
        except Refused as error:
            if directory_lib.holds_files(path):
                damaged.append(str(error))
            continue
        return step, damaged
    return None, damaged


def find_newest_step(directory: Folder) -> int | None:
    """Return the step of the newest checkpoint with a readable receipt; None if there is none.

    Raises Refused if checkpoints exist, but none can be read.
    """
    step, damaged = find_readable_step(directory_lib.make_absolute(directory))
    if step is None and damaged:
        raise directory_lib.make_no_intact_checkpoint(directory, damaged)
    return step


def find_run(home: pathlib.Path, checkpoints: Folder) -> tuple[dict[str, Any] | None, str]:
    """Return the run record in a workdir, None without a run, and the damage to run.json or "".

    If run.json is damaged or missing, the record is the copy in the newest checkpoint.

    Raises:
      DamagedFile: the file is damaged, and no checkpoint has a copy.
    """
    path = home / run_record.FILE
    try:
        return run_record.check_record(small_files.read_object(path, home), path), ""
    except (FileNotFoundError, DamagedFile) as error:
        is_missing = isinstance(error, FileNotFoundError)
        problem = f"{path} is missing" if is_missing else str(error)
    step, _ = find_readable_step(directory_lib.make_absolute(checkpoints))
    run = {}
    if step is not None:
        run = directory_lib.read_receipt(locate(checkpoints, step))["run"]
    try:
        return run_record.check_record(run, "the receipt of the newest checkpoint"), problem
    except DamagedFile:  # no checkpoint, or its receipt has no valid record
        if is_missing:
            return None, ""
    raise DamagedFile(
        f"{problem}, and no checkpoint has a copy; put a copy of the file back, or give another "
        "--workdir"
    )


def restore_arrays(checkpoint: epath.Path, abstract: Any) -> Any:
    """Restore arrays, sharded as `abstract`; raise Refused if a file is damaged.

    Processes do not wait for each other.
    """
    state = checkpoint / STATE
    for path in [state / "_METADATA", *(state / "array_metadatas").glob("*")]:
        directory_lib.read_json(path)
    args = ocp.args.PyTreeRestore(
        abstract,
        restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
        partial_restore=True,
    )
    try:
        return ocp.PyTreeCheckpointHandler().restore(state, args=args)
    except Exception as error:
        # Orbax wraps TensorStore errors in a bare Exception with less detail.
        if type(error) is Exception and isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


def restore_params(directory: Folder, step: int, model: Model, mesh: jax.sharding.Mesh) -> Params:
    """Restore only the parameters of a checkpoint, sharded over a mesh as the model declares.

    Raises Refused if the parameters have other shapes, or are damaged.
    """
    checkpoint = locate(directory, step)

    def describe(declared: Declared) -> jax.ShapeDtypeStruct:
        sharding = jax.NamedSharding(mesh, arrays.get_unpadded_spec(declared))
        return jax.ShapeDtypeStruct(declared.logical_dims, jnp.float32, sharding=sharding)

    abstract = {"params": jax.tree.map(describe, model.declared)}
    receipt = directory_lib.read_receipt(checkpoint)
    leaves = {name: kind for name, kind in receipt["leaves"].items() if name.startswith("params/")}
    arrays.check_arrays(checkpoint, {**receipt, "leaves": leaves}, abstract)
    try:
        restored = restore_arrays(checkpoint, abstract)
        problem = arrays.describe_damage(checkpoint, restored, abstract, leaves)
    except Exception as error:
        problem = directory_lib.describe_error(error, checkpoint)
        if not directory_lib.is_damage(error, checkpoint):
            raise explain(error, str(checkpoint), "reading") or OSError(problem) from error
    if problem:
        raise Refused(
            f"{problem}; start the training command again, which resumes from the newest "
            "intact checkpoint"
        )
    return jax.tree.map(arrays.add_padding, restored["params"], model.declared)


def read_param_dims(directory: Folder, step: int) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a checkpoint's parameters by their paths, from its receipt."""
    dims = {}
    receipt = directory_lib.read_receipt(locate(directory, step))
    for name, kind in receipt["leaves"].items():
        if name.startswith("params/"):
            sizes = _SIZES.match(kind)
            if sizes is None:
                raise DamagedFile(f"checkpoint {step} of {directory} has {name} as {kind!r:.80}")
            dims[name.removeprefix("params/")] = tuple(map(int, sizes[1].split(",")))
    return dims


def verify_arrays(directory: Folder, step: int) -> None:
    """Raise Refused if an array of a checkpoint is damaged, optimizer moments included."""
    checkpoint = locate(directory, step)
    receipt = directory_lib.read_receipt(checkpoint)
    # Fingerprints need a mesh.
    with jax.set_mesh(mesh_lib.make_mesh(MeshConfig(), jax.local_devices()[:1])):
        state = {name: jnp.asarray(array) for name, array in read_arrays(directory, step).items()}
        arrays.check_arrays(checkpoint, receipt, state)
        problem = arrays.describe_damage(checkpoint, state, state, receipt["leaves"])
    if problem:
        raise Refused(f"{problem}; give another step")


def read_arrays(directory: Folder, step: int) -> dict[str, np.ndarray]:
    """Return all arrays of a checkpoint by path, unverified."""
    state = locate(directory, step) / STATE
    handler = ocp.PyTreeCheckpointHandler()
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    args = jax.tree.map(lambda _: as_numpy, handler.metadata(state).tree)
    tree = handler.restore(state, args=ocp.args.PyTreeRestore(restore_args=args))
    return {name: np.asarray(leaf) for name, leaf in arrays.name_leaves(tree).items()}
