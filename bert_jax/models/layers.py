"""Modules that hold parameters: linear maps, layer norms and tables, with their logical axes.

A parameter is created with the logical name of each of its dimensions (bert_jax/mesh.py says where
they lie). Modules hold settings and parameters and never change after __init__.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import ops
from bert_jax.models.choices import Choices

LogicalAxes = Sequence[str | None]
Dim = tuple[int, str | None]


@dataclasses.dataclass(frozen=True)
class Initial:
    """How a parameter starts: a constant, plus a normal of this deviation cut at two deviations.

    Source of the cut normal: modeling.py@eedf5716ce create_initializer.
    """

    constant: float = 0.0
    stddev: float = 0.0

    def draw(self, key: jax.Array, dims: tuple[int, ...]) -> jax.Array:
        """float32 of these dims."""
        if self.stddev == 0.0:
            return jnp.full(dims, self.constant, jnp.float32)
        normal = jax.random.truncated_normal(key, -2.0, 2.0, dims, jnp.float32)
        return self.constant + self.stddev * normal


def declare(dims: Sequence[int], logical_axes: LogicalAxes, initial: Initial) -> nnx.Param[Any]:
    """A float32 parameter of which only shape, axes and start are known (see bert.Model.init)."""
    shape = jax.ShapeDtypeStruct(tuple(dims), jnp.float32)
    return nnx.Param(shape, logical_axes=tuple(logical_axes), initial=initial)


class Linear(nnx.Module):
    """x @ kernel + bias over the last dimension; all heads lie side by side in one matrix."""

    def __init__(self, inputs: Dim, outputs: Dim, stddev: float) -> None:
        """A Dim is (size, logical axis)."""
        rows, row_axis = inputs
        columns, column_axis = outputs
        self.kernel = declare((rows, columns), (row_axis, column_axis), Initial(stddev=stddev))
        # A bias is added to activations, whose width is whole: only heads and mlp stay cut.
        self.out_axis = None if column_axis == "embed" else column_axis
        self.bias = declare((columns,), (self.out_axis,), Initial())

    def __call__(self, x: jax.Array) -> jax.Array:
        """float[...,inputs] of two or three dimensions -> float[...,outputs], dtype of x."""
        rows = "bs"[: x.ndim - 1]
        out_axes = (*("batch", None)[: len(rows)], self.out_axis)
        y = ops.einsum(f"{rows}d,de->{rows}e", x, ops.weight(self.kernel[...], x.dtype), out_axes)
        return y + self.bias[...].astype(x.dtype)


class LayerNorm(nnx.Module):
    """Layer normalisation over the last dimension with a learned scale and bias."""

    def __init__(self, width: int, eps: float, choices: Choices) -> None:
        self.scale = declare((width,), (None,), Initial(constant=1.0))
        self.bias = declare((width,), (None,), Initial())
        self.eps = eps
        self.single_pass = choices.single_pass_variance

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.layer_norm(x, self.scale[...], self.bias[...], self.eps, self.single_pass)


class Table(nnx.Module):
    """Rows looked up by id."""

    def __init__(self, rows: int, width: int, row_axis: str | None, stddev: float) -> None:
        self.embedding = declare((rows, width), (row_axis, "embed"), Initial(stddev=stddev))

    def __call__(self, ids_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """int32[B,S] -> dtype[B,S,D]."""
        return ops.lookup(self.embedding[...], ids_BS, dtype)

    def among_few(self, ids_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """The same of a table of few rows: chosen, not gathered."""
        return ops.select_rows(self.embedding[...], ids_BS, dtype)

    def in_order(self, ids_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """The same where the ids of each row count from 0; of int32[B,S] the shape is read."""
        return ops.first_rows(self.embedding[...], (ids_BS.shape[0], ids_BS.shape[1]), dtype)
