"""Convert a state between memory and checkpoint: drop padding, name arrays, fingerprint them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import PartitionSpec

from bert_jax.checkpoint import fingerprint
from bert_jax.model.layers import Declared
from data_pipeline.io import Refused


def get_unpadded_spec(declared: Declared) -> PartitionSpec:
    """Return the sharding of a leaf without its padding rows: padded dimensions are unsharded."""
    return PartitionSpec(
        *(
            None if dim != size else axis
            for dim, size, axis in zip(
                declared.dims, declared.logical_dims, declared.spec, strict=True
            )
        )
    )


def remove_padding(leaf: jax.Array, declared: Declared) -> jax.Array:
    """Remove the padding rows of a leaf, as checkpoints store it."""
    if declared.dims == declared.logical_dims:
        return leaf
    unsharded = jax.sharding.reshard(leaf, get_unpadded_spec(declared))
    return unsharded[tuple(slice(0, size) for size in declared.logical_dims)]


def add_padding(leaf: jax.Array, declared: Declared) -> jax.Array:
    """Pad a leaf from a checkpoint with rows of zeros to its size in memory."""
    if declared.dims == declared.logical_dims:
        return leaf
    return jnp.pad(
        leaf,
        [(0, dim - size) for dim, size in zip(declared.dims, declared.logical_dims, strict=True)],
    )


def describe_unpadded(leaf: Any, declared: Declared) -> jax.ShapeDtypeStruct:
    """Return sizes, dtype and sharding of a leaf in a checkpoint; padded dimensions unsharded."""
    is_padded = declared.dims != declared.logical_dims
    spec = get_unpadded_spec(declared) if is_padded else leaf.sharding.spec
    sharding = jax.NamedSharding(leaf.sharding.mesh, spec)
    dims = declared.logical_dims if is_padded else leaf.shape  # a phase may have other sizes
    return jax.ShapeDtypeStruct(dims, leaf.dtype, sharding=sharding)


def name_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by path, such as layers/00/mlp/output/kernel."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def describe_kinds(unpadded: Any) -> dict[str, str]:
    """Return the dtype and sizes of each leaf by path, such as float32[211,32]."""
    return {
        name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for name, leaf in name_leaves(unpadded).items()
    }


def compute_fingerprints(tree: Any, unpadded: Any) -> jax.Array:
    """Return the fingerprints of a tree without its padding, uint32[leaves,2]; do not block."""
    dims = [leaf.shape for leaf in jax.tree.leaves(unpadded)]
    return fingerprint.compute(jax.tree.leaves(tree), dims)


def check_arrays(checkpoint: epath.Path, receipt: Mapping[str, Any], unpadded: Any) -> None:
    """Check that the arrays of a checkpoint have the names, dtypes and sizes of `unpadded`.

    Raises:
      Refused: an array differs (the first is named), or the fingerprints have another version.
    """
    # Names with dtype and sizes, as in float32[211,32]; in the receipt a fingerprint follows.
    saved = {name: text.partition(" ")[0] for name, text in receipt["leaves"].items()}
    expected = describe_kinds(unpadded)
    differing = (name for name in [*expected, *saved] if saved.get(name) != expected.get(name))
    problem = ""
    if name := next(differing, ""):
        ours = "which this bert_jax does not have"
        if name in expected:
            ours = f"but this bert_jax has it as {expected[name]}"
        problem = f"holds {name} as {saved.get(name, 'nothing')}, {ours}"
    if receipt["fingerprints"] != fingerprint.VERSION:
        problem = (
            f"has fingerprints of version {receipt['fingerprints']}, not {fingerprint.VERSION}"
        )
    if problem:
        raise Refused(
            f"{checkpoint} {problem}; use the version that wrote it, or train in a new --workdir"
        )


def describe_damage(
    checkpoint: epath.Path, restored: Any, unpadded: Any, leaves: Mapping[str, str]
) -> str:
    """Describe the restored arrays whose fingerprints differ from the saved ones; "" if none."""
    digests = fingerprint.to_hex(np.asarray(compute_fingerprints(restored, unpadded)))
    differing = [
        name
        for name, digest in zip(name_leaves(unpadded), digests, strict=True)
        if leaves[name].partition(" ")[2] != digest
    ]
    if not differing:
        return ""
    more = f" and {len(differing) - 1} more arrays are" if len(differing) > 1 else " is"
    return f"{checkpoint}: {differing[0]}{more} not what was saved"
