"""Compare an attention kernel with blocks.py on these devices, at the shape of a run.

No kernel is trusted because it ran elsewhere: a run sends one row per device through its kernel
before its first step. Output and gradients must be as close to float32 as bfloat16 allows, and
dropout masks must equal the plain implementation's.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bert_jax.model.attention import blocks, cudnn, flash, tpu_kernel
from bert_jax.model.attention.dispatch import (
    CUDNN,
    KERNEL,
    hide_later,
    hide_other_examples,
    hide_outside_window,
)
from bert_jax.model.dropout import keep_mask
from bert_jax.model.embeddings import Rotation, make_rotation, rotate
from bert_jax.parallel import mesh as mesh_lib

MAX_ERROR_RATIO = 2.0  # error of a kernel over the error of bfloat16 in blocks.py
_LOW, _HIGH = 0x12345678, 0x9ABCDEF0  # words of the dropout masks
# The last is computed by the TPU kernel alone; elsewhere XLA sums it in bfloat16.
_RESULTS = ("output", "gradient of qkv", "gradient of biases")


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """Describe the attention of a kind of layer in a phase of a run."""

    seq_len: int
    heads: int
    head_width: int
    window: int  # tokens; 0 attends to the complete row
    is_causal: bool
    rate: float  # dropout of the weights
    theta: float  # base of the rotary positions; 0 for none

    def describe(self) -> str:
        words = f"{self.seq_len} tokens, {self.heads} heads of {self.head_width}"
        words += f", a window of {self.window}" if self.window else ""
        words += ", rotary" if self.theta else ""
        return f"{words}, left to right" if self.is_causal else words


@dataclasses.dataclass(frozen=True)
class KernelCheck:
    """Hold how far a kernel is from the reference, the worst of all devices."""

    kernel: str
    shape: AttentionShape
    errors: dict[str, float]  # result -> error divided by bfloat16's own error
    wrong_mask_bits: int

    @property
    def is_sound(self) -> bool:
        return not self.wrong_mask_bits and max(self.errors.values()) <= MAX_ERROR_RATIO

    def describe(self) -> str:
        worst = max(self.errors, key=lambda name: self.errors[name])
        bits = f", and {self.wrong_mask_bits:,} bits of the dropout masks differ"
        return (
            f"{self.kernel} at {self.shape.describe()}: {worst} is off by "
            f"{self.errors[worst]:.2f} times what bfloat16 loses (allowed: {MAX_ERROR_RATIO:g})"
            f"{bits if self.wrong_mask_bits else ''}"
        )


def check_kernel(kernel: str, shape: AttentionShape, mesh: Mesh) -> KernelCheck:
    """Send one row per device through a kernel and through blocks.py in float32.

    The row holds three examples of uneven length and padding. Every process must call this; each
    gets the same answer. Without a device that runs the kernel, the kernel is interpreted.
    """
    rows, width = mesh.size, shape.heads * shape.head_width
    rng = np.random.default_rng(shape.seq_len)
    ends = np.cumsum(rng.dirichlet((4, 3, 2, 1), rows), axis=1)[:, :3] * shape.seq_len
    ids_BS = (np.arange(shape.seq_len)[None, None] < ends[:, :, None]).sum(axis=1)
    qkv_BSE = rng.normal(size=(rows, shape.seq_len, 3 * width)).astype(np.float32)
    dout_BSD = rng.normal(size=(rows, shape.seq_len, width)).astype(np.float32)
    with jax.set_mesh(mesh):
        arrays = (
            _place(mesh, qkv_BSE, jnp.bfloat16),
            _place(mesh, dout_BSD, jnp.bfloat16),
            _place(mesh, ids_BS, jnp.int32),
        )
        words = tuple(_place(mesh, np.full(rows, word), jnp.uint32) for word in (_LOW, _HIGH))
        by_kernel = _run_kernel(kernel, shape, 0.0)(*arrays, *words)
        exact = tuple(array.astype(jnp.float32) for array in arrays[:2])
        with jax.default_matmul_precision("highest"):
            reference = _run_blocks(shape)(*exact, arrays[2])
        rounded = _run_blocks(shape)(*arrays)
        errors = {
            name: _distance(by_kernel[i], reference[i])
            / max(_distance(rounded[i], reference[i]), float(np.finfo(np.float32).tiny))
            for i, name in enumerate(_RESULTS if kernel == KERNEL else _RESULTS[:2])
        }
        wrong_bits = _count_wrong_bits(shape, mesh, words) if shape.rate else 0
    return KernelCheck(kernel, shape, errors, wrong_bits)


def _place(mesh: Mesh, array: np.ndarray, dtype: Any) -> jax.Array:
    sharding = mesh_lib.batch_sharding(mesh, array.ndim)
    cast = array.astype(dtype)
    return jax.make_array_from_callback(cast.shape, sharding, lambda index: cast[index])


def _make_rotation(shape: AttentionShape) -> Rotation | None:
    if not shape.theta:
        return None
    return make_rotation(None, shape.seq_len, shape.head_width, shape.theta)


def _run_kernel(
    kernel: str, shape: AttentionShape, rate: float
) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the computation of output and gradients by a kernel."""
    sees = (shape.window, shape.is_causal)

    def mask(ids_BS: jax.Array) -> jax.Array:
        visible = hide_other_examples(ids_BS)
        if shape.window:
            visible = hide_outside_window(visible, shape.seq_len, shape.window)
        return (hide_later(visible, shape.seq_len) if shape.is_causal else visible).mask

    def compute_on_device(
        qkv_BSE: jax.Array, dout_BSD: jax.Array, ids_BS: jax.Array, low_B: Any, high_B: Any
    ) -> tuple[jax.Array, ...]:
        rotation, heads = _make_rotation(shape), shape.heads

        def attend(qkv_BSE: jax.Array, bias_E: jax.Array) -> jax.Array:
            if kernel == KERNEL:
                sizes = (shape.seq_len, heads, shape.head_width)
                row = tpu_kernel.KernelRow(*sizes, rate, shape.is_causal)
                return tpu_kernel.attend(qkv_BSE, bias_E, ids_BS, (low_B, high_B), row)
            qkv_BSE += bias_E.astype(qkv_BSE.dtype)
            if kernel == CUDNN:
                return cudnn.attend(qkv_BSE, mask(ids_BS), rotation, heads, shape.is_causal)
            return flash.attend(qkv_BSE, ids_BS, rotation, heads, *sees)

        bias_E = jnp.zeros(qkv_BSE.shape[-1], jnp.float32)
        out_BSD, backward = jax.vjp(attend, qkv_BSE, bias_E)
        dqkv_BSE, dbias_E = backward(dout_BSD)
        return out_BSD, dqkv_BSE, jax.lax.psum(dbias_E, mesh_lib.BATCH_AXES)

    batch = PartitionSpec(mesh_lib.BATCH_AXES)
    return jax.jit(
        jax.shard_map(
            compute_on_device,
            in_specs=(batch,) * 5,
            out_specs=(batch, batch, PartitionSpec()),
            check_vma=False,
        )
    )


def _run_blocks(shape: AttentionShape) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the same computation by blocks.py, in the dtype of its inputs."""

    def run(qkv_BSE: jax.Array, dout_BSD: jax.Array, ids_BS: jax.Array) -> tuple[jax.Array, ...]:
        rotation = _make_rotation(shape)
        batch, by_head = len(qkv_BSE), mesh_lib.spec("batch", None, "heads", None)
        apart = (batch, shape.seq_len, shape.heads, shape.head_width)

        def attend(qkv_BSE: jax.Array) -> jax.Array:
            q, k, v = (
                jnp.reshape(part, apart, out_sharding=by_head)
                for part in jnp.split(qkv_BSE, 3, axis=-1)
            )
            if rotation is not None:
                q, k = rotate(q, rotation), rotate(k, rotation)
            if shape.window:
                out = blocks.attend_window(q, k, v, ids_BS, shape.window, shape.is_causal)
            else:
                out = blocks.attend_complete(q, k, v, ids_BS, shape.is_causal)
            together = mesh_lib.spec("batch", None, "heads")
            return jnp.reshape(out, dout_BSD.shape, out_sharding=together)

        out_BSD, backward = jax.vjp(attend, qkv_BSE)
        (dqkv_BSE,) = backward(jax.sharding.reshard(dout_BSD, jax.typeof(out_BSD).sharding))
        return out_BSD, dqkv_BSE, jnp.sum(dqkv_BSE.astype(jnp.float32), axis=(0, 1))

    return jax.jit(run)


def _distance(got: jax.Array, expected: jax.Array) -> float:
    """Return the largest difference, NaN counting as infinite."""

    @jax.jit
    def measure(got: jax.Array, expected: jax.Array) -> jax.Array:
        largest = jnp.max(jnp.abs(got.astype(jnp.float32) - expected.astype(jnp.float32)))
        return jnp.where(jnp.isnan(largest), jnp.inf, largest)

    return float(measure(got, expected))


def _count_wrong_bits(shape: AttentionShape, mesh: Mesh, words: tuple[jax.Array, ...]) -> int:
    """Count the elements of dropout masks in which the TPU kernel differs from the hash.

    No other kernel has dropout; the TPU kernel has neither windows nor rotary positions.
    With equal scores, and values that single out one key each, the output is the mask of
    head_width keys. One row per device is read at the first, a middle and the last keys.
    """
    rows, lanes = mesh.size, shape.head_width
    last = shape.seq_len - lanes
    nothing = np.zeros((rows, shape.seq_len, 2 * shape.heads * lanes), np.float32)
    ones_BS = _place(mesh, np.ones((rows, shape.seq_len)), jnp.int32)
    run = _run_kernel(KERNEL, shape, shape.rate)

    @jax.jit
    def count(out_BSD: jax.Array, low_B: jax.Array, high_B: jax.Array, first: int) -> jax.Array:
        scores = (rows, shape.heads, shape.seq_len, shape.seq_len)
        like = jnp.zeros(scores, jnp.bool_, out_sharding=mesh_lib.spec("batch", None, None, None))
        keep = keep_mask(like, low_B, high_B, shape.rate, -1)
        keep_BHSK = jax.lax.dynamic_slice_in_dim(keep, first, lanes, axis=3)
        if shape.is_causal:
            query_S1 = jnp.arange(shape.seq_len)[:, None]
            keep_BHSK &= first + jnp.arange(lanes) <= query_S1
        out_BSHK = jnp.reshape(
            out_BSD,
            (rows, shape.seq_len, shape.heads, lanes),
            out_sharding=mesh_lib.spec("batch", None, None, None),
        )
        spelled_BHSK = jnp.transpose(out_BSHK, (0, 2, 1, 3)) > 0
        return jnp.sum(spelled_BHSK != keep_BHSK)

    wrong = 0
    for first in sorted({0, last // 2, last}):
        one_hot = np.zeros((rows, shape.seq_len, shape.heads, lanes), np.float32)
        lane = np.arange(lanes)
        one_hot[:, first + lane, :, lane] = 1
        values = one_hot.reshape(rows, shape.seq_len, -1)
        qkv_BSE = _place(mesh, np.concatenate([nothing, values], axis=-1), jnp.bfloat16)
        out_BSD, *_ = run(qkv_BSE, _place(mesh, values, jnp.bfloat16), ones_BS, *words)
        wrong += int(count(out_BSD, *words, first))
    return wrong
