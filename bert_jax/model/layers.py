"""Define the modules that hold parameters: linear maps, layer norms, tables, the feed-forward part.

A parameter is declared with the logical name of each of its dimensions; bert_jax/parallel/mesh.py
maps these names to mesh axes. Modules hold settings and parameters and never change after __init__.
`resolve_choices` decides how they compute, from config.compute and the dtype of matmuls.

Dimensions: B batch, S sequence, D width, F feed-forward units.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.model import ops
from bert_jax.model.dropout import MLP_OUTPUT, POSITIONS, Dropout

LayerNumber = int | jax.Array  # an array, uint32 [], where the loop over layers is rolled


@dataclasses.dataclass(frozen=True)
class Choices:
    """Select how modules compute; no choice changes their parameters."""

    single_pass_variance: bool
    mlm_logits_dtype: jnp.dtype
    gelu_saves_derivative: bool
    attention: str  # the unresolved setting: the implementation depends on mesh and lengths
    remat_layers: bool
    rolled_layers: bool


def resolve_choices(config: ComputeConfig, dtype: jnp.dtype) -> Choices:
    """Resolve "auto" settings: exact in float32, cheap where matmuls round anyway."""
    rounds = dtype != jnp.float32
    logits = config.mlm_logits_dtype
    return Choices(
        single_pass_variance=_is_cheap(config.layer_norm_variance, "single_pass", rounds),
        mlm_logits_dtype=jnp.dtype(dtype if logits == "auto" else logits),
        gelu_saves_derivative=_is_cheap(config.gelu_backward, "saved", rounds),
        attention=config.attention,
        remat_layers=config.remat == "layer",
        rolled_layers=config.rolled_layers,
    )


def _is_cheap(setting: str, cheap: str, rounds: bool) -> bool:
    return rounds if setting == "auto" else setting == cheap


Dim = tuple[int, str | None]  # size and logical axis


@dataclasses.dataclass(frozen=True)
class Initial:
    """Initialize a parameter: a constant plus a normal, truncated at two standard deviations.

    Source of the truncation: modeling.py@eedf5716ce create_initializer.
    """

    constant: float = 0.0
    stddev: float = 0.0

    def draw(self, key: jax.Array, dims: tuple[int, ...]) -> jax.Array:
        """Sample a float32 array of these dims."""
        if self.stddev == 0.0:
            return jnp.full(dims, self.constant, jnp.float32)
        normal = jax.random.truncated_normal(key, -2.0, 2.0, dims, jnp.float32)
        return self.constant + self.stddev * normal


def declare(
    dims: tuple[int, ...], logical_axes: tuple[str | None, ...], initial: Initial
) -> nnx.Param[Any]:
    """Declare a float32 parameter, to be initialized by bert.Model.init."""
    shape = jax.ShapeDtypeStruct(dims, jnp.float32)
    return nnx.Param(shape, logical_axes=logical_axes, initial=initial)


@dataclasses.dataclass(frozen=True)
class Declared:
    """Describe a parameter before it exists; dims are sizes in memory, padding included."""

    dims: tuple[int, ...]
    logical_dims: tuple[int, ...]  # sizes without rows that pad the vocabulary
    spec: PartitionSpec
    initial: Initial
    logical_axes: tuple[str | None, ...]  # name of each dimension: mesh.RULES, or None

    @property
    def is_matrix(self) -> bool:
        """Return whether it is a kernel or table, not a bias or norm."""
        return len(self.dims) > 1


def init_param(key: jax.Array, path: tuple[Any, ...], parameter: Declared) -> jax.Array:
    """Initialize the parameter at a path of the tree, on the current mesh."""
    return _jit_draw(parameter)(
        jax.random.fold_in(key, zlib.crc32(jax.tree_util.keystr(path).encode()))
    )


@functools.cache
def _jit_draw(parameter: Declared) -> Callable[[jax.Array], jax.Array]:
    sizes = zip(parameter.dims, parameter.logical_dims, strict=True)
    padding = [(0, padded - logical) for padded, logical in sizes]
    return jax.jit(
        lambda key: jnp.pad(parameter.initial.draw(key, parameter.logical_dims), padding),
        out_shardings=parameter.spec,
    )


class Linear(nnx.Module):
    """Compute x @ kernel + bias over the last dimension; heads are side by side in a matrix."""

    def __init__(self, inputs: Dim, outputs: Dim, stddev: float, has_bias: bool = True) -> None:
        rows, row_axis = inputs
        columns, column_axis = outputs
        self.kernel = declare((rows, columns), (row_axis, column_axis), Initial(stddev=stddev))
        # A bias is added to activations, which are sharded only over heads and mlp.
        self.out_axis = None if column_axis == "embed" else column_axis
        self.bias = declare((columns,), (self.out_axis,), Initial()) if has_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map float[...,inputs] of two or three dimensions to float[...,outputs], dtype of x."""
        y = ops.multiply(x, self.gather_kernel(x.dtype), self.out_axis)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)

    def gather_kernel(self, dtype: jnp.dtype) -> ops.Kernel:
        """Return the kernel for products in a dtype; an int8 kernel as it is."""
        kernel = self.kernel.get_value()
        return kernel if isinstance(kernel, ops.Int8Kernel) else ops.gather_weight(kernel, dtype)


class Norm(nnx.Module):
    """Normalize over the last dimension, with a learned scale and, where configured, a bias."""

    def __init__(self, config: ModelConfig, width: int, choices: Choices) -> None:
        self.scale = declare((width,), (None,), Initial(constant=1.0))
        has_bias = config.norm_bias and config.norm_type == "layer_norm"
        self.bias = declare((width,), (None,), Initial()) if has_bias else None
        self.is_rms = config.norm_type == "rms_norm"
        self.eps = config.layer_norm_eps
        self.single_pass = choices.single_pass_variance

    def __call__(self, x: jax.Array) -> jax.Array:
        scale_D = self.scale[...]
        if self.is_rms:
            return ops.rms_norm(x, scale_D, self.eps)
        bias_D = jnp.zeros_like(scale_D) if self.bias is None else self.bias[...]
        return ops.layer_norm(x, scale_D, bias_D, self.eps, self.single_pass)


class Residual(nnx.Module):
    """Add a part of a layer to its input, with dropout; normalize the sum, or the part's input."""

    def __init__(
        self, config: ModelConfig, choices: Choices, name: str, site: int, has_norm: bool = True
    ) -> None:
        self.layer_norm = Norm(config, config.hidden_size, choices) if has_norm else None
        self.is_pre_norm = config.norm_position == "pre"
        self.output_rate = config.dropout_rate(name)
        self.site = site

    def add(
        self,
        x_BSD: jax.Array,
        compute: Callable[[jax.Array], jax.Array],
        layer: LayerNumber,
        dropout: Dropout | None,
    ) -> jax.Array:
        """Return float[B,S,D] plus what `compute` makes of it, normalized as configured."""
        norm = self.layer_norm or (lambda x_BSD: x_BSD)
        y_BSD = compute(self.read(x_BSD))
        if dropout is not None:
            y_BSD = dropout.apply(y_BSD, self.output_rate, layer, self.site, POSITIONS)
        return x_BSD + y_BSD if self.is_pre_norm else norm(x_BSD + y_BSD)

    def read(self, x_BSD: jax.Array) -> jax.Array:
        """Return the part's input, normalized if the norm comes first."""
        return self.layer_norm(x_BSD) if self.is_pre_norm and self.layer_norm else x_BSD


def compute_residual_stddev(config: ModelConfig) -> float:
    """Return the standard deviation of new weights that write to the residual stream.

    Source: Shoeybi et al. 2019 (Megatron-LM), section 5.1.
    """
    if config.initializer == "bert":
        return config.initializer_range
    return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)


class FeedForward(Residual):
    """Map to the units, apply the activation (times the gated input: GeGLU, SwiGLU), map back.

    Source: modeling.py@eedf5716ce transformer_model; Shazeer 2020 (GLU variants), section 2.
    """

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        super().__init__(config, choices, "mlp", MLP_OUTPUT)
        width, units = (config.hidden_size, "embed"), (config.intermediate_size, "mlp")
        stddev, has_bias = config.initializer_range, config.linear_bias
        self.intermediate = Linear(width, units, stddev, has_bias)
        self.gated = Linear(width, units, stddev, has_bias) if config.gated_mlp else None
        self.output = Linear(units, width, compute_residual_stddev(config), has_bias)
        self.hidden_act = config.hidden_act
        self.saves_derivative = choices.gelu_saves_derivative

    def compute(self, x_BSD: jax.Array) -> jax.Array:
        """Compute the part, before dropout, residual and norm: float[B,S,D]."""
        units_BSF = ops.activate(self.intermediate(x_BSD), self.hidden_act, self.saves_derivative)
        if self.gated is not None:
            units_BSF = units_BSF * self.gated(x_BSD)
        return self.output(units_BSF)


class Table(nnx.Module):
    """Hold the rows of a table that is looked up by id."""

    def __init__(self, rows: int, width: int, row_axis: str | None, stddev: float) -> None:
        self.embedding = declare((rows, width), (row_axis, "embed"), Initial(stddev=stddev))
