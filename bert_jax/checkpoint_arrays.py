"""The arrays of a state as a checkpoint holds them: without padding, by name, with fingerprints."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import PartitionSpec

from bert_jax import fingerprint
from bert_jax.exit_codes import Refused
from bert_jax.models.bert import Declared


def whole_where_padded(of: Declared) -> PartitionSpec:
    """The spec of a leaf without padding rows: a dimension that loses rows cannot stay cut."""
    return PartitionSpec(
        *(
            None if held != real else axis
            for held, real, axis in zip(of.dims, of.logical_dims, of.spec, strict=True)
        )
    )


def without_padding(leaf: jax.Array, of: Declared) -> jax.Array:
    """A leaf in memory cut to the sizes that a checkpoint holds."""
    if of.dims == of.logical_dims:
        return leaf
    whole = jax.sharding.reshard(leaf, whole_where_padded(of))
    return whole[tuple(slice(0, size) for size in of.logical_dims)]


def with_padding(leaf: jax.Array, of: Declared) -> jax.Array:
    """A leaf of a checkpoint with rows of zeros, as it lies in memory."""
    if of.dims == of.logical_dims:
        return leaf
    return jnp.pad(
        leaf, [(0, held - real) for held, real in zip(of.dims, of.logical_dims, strict=True)]
    )


def logical(leaf: Any, of: Declared) -> jax.ShapeDtypeStruct:
    """A leaf as a checkpoint holds it, laid out as it lies in memory but for padded dimensions."""
    spec = leaf.sharding.spec if of.dims == of.logical_dims else whole_where_padded(of)
    sharding = jax.NamedSharding(leaf.sharding.mesh, spec)
    return jax.ShapeDtypeStruct(of.logical_dims, leaf.dtype, sharding=sharding)


def _by_name(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def kinds(logical: Any) -> dict[str, str]:
    """dtype and sizes of each leaf of a tree by name, as float32[211,32]."""
    return {
        name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for name, leaf in _by_name(logical).items()
    }


def fingerprints(held: Any, logical: Any) -> jax.Array:
    """uint32[leaves,2] of a tree in memory, without its padding; nothing waits for it."""
    dims = [leaf.shape for leaf in jax.tree.leaves(logical)]
    return fingerprint.of_leaves(jax.tree.leaves(held), dims)


def check(checkpoint: epath.Path, receipt: Mapping[str, Any], logical: Any) -> None:
    """Raise if a checkpoint holds other arrays than these.

    Raises:
      Refused: names the first that differs, or the fingerprints of another version.
    """
    how = _difference(receipt["leaves"], kinds(logical))
    if receipt["fingerprints"] != fingerprint.VERSION:
        how = f"has fingerprints of version {receipt['fingerprints']}, not {fingerprint.VERSION}"
    if how:
        raise Refused(
            f"{checkpoint} {how}; use the version that wrote it, or train in a new --workdir"
        )


def _difference(held: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """How the arrays of a checkpoint differ from those of this model, "" where they do not.

    Both are by name: a dtype with sizes, as in float32[211,32]; a fingerprint may follow.
    """
    for name, kind in wanted.items():
        there = held.get(name, "nothing").partition(" ")[0]
        if there != kind:
            return f"holds {name} as {there}, this bert_jax has it as {kind}"
    for name in held:
        if name not in wanted:
            return f"holds {name}, which this bert_jax has not"
    return ""


def unverified(checkpoint: epath.Path, held: Any, logical: Any, leaves: Mapping[str, str]) -> str:
    """Which restored arrays are not those that were saved, in words; "" where all are."""
    words = fingerprint.in_words(np.asarray(fingerprints(held, logical)))
    differing = [
        name
        for name, word in zip(_by_name(logical), words, strict=True)
        if leaves[name].partition(" ")[2] != word
    ]
    if not differing:
        return ""
    more = f" and {len(differing) - 1} more arrays are" if len(differing) > 1 else " is"
    return f"{checkpoint}: {differing[0]}{more} not what was saved"
