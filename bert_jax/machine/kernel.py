"""Check the attention kernel of these devices against plain attention, and its dropout masks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bert_jax.config import ModelConfig
from bert_jax.machine.checks import FINE, SKIPPED, WRONG, Verdict
from bert_jax.model import attention
from bert_jax.model.attention import gpu_kernel, tpu_kernel
from bert_jax.model.dropout import Dropout, keep_mask, number_rows
from bert_jax.parallel import mesh as mesh_lib

LENGTHS = (128, 256, 384, 512)  # of compared rows: plain attention keeps all scores in float32


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Hold the inputs of a comparison of attention: some rows on each device of a mesh."""

    kernel: str  # attention.KERNEL or attention.GPU_KERNEL
    qkv_BSE: jax.Array
    dout_BSD: jax.Array
    ids_BS: jax.Array
    words: tuple[jax.Array, jax.Array]


def check_kernel(
    mesh: Mesh, model: ModelConfig, seq_len: int, rows_per_device: int = 2, interpret: str = ""
) -> Verdict:
    """Compare the attention kernel for these devices with plain attention.

    Output and gradients must agree within bfloat16's rounding of float32, and dropout masks bit for
    bit. The rows compared have the largest of LENGTHS that is not above seq_len. interpret names a
    kernel that is interpreted where no device can run it.
    """
    heads, width = model.num_attention_heads, model.hidden_size
    kind = mesh.devices.flat[0].device_kind
    is_gpu = interpret == attention.GPU_KERNEL or gpu_kernel.is_gpu(kind)
    part = f"attention kernel at {seq_len}"
    refusal = (gpu_kernel if is_gpu else tpu_kernel).explain_refusal(
        kind, seq_len, heads, width // heads, jnp.dtype("bfloat16")
    )
    if refusal and not interpret:
        return Verdict(part, SKIPPED, refusal)
    seq_len = max((length for length in LENGTHS if length <= seq_len), default=LENGTHS[0])
    part = f"attention kernel at {seq_len}"
    name_of_kernel = attention.GPU_KERNEL if is_gpu else attention.KERNEL
    rate, batch = 0.1, rows_per_device * mesh.size
    rng = np.random.default_rng(seq_len)

    def place(array: np.ndarray, dtype: Any) -> jax.Array:
        placed = jnp.asarray(array, dtype)
        return jax.device_put(placed, mesh_lib.batch_sharding(mesh, placed.ndim))

    lengths = np.resize([seq_len, seq_len // 2 + 3, 7], batch)
    with jax.set_mesh(mesh):
        words = Dropout(jnp.uint32(3), jnp.uint32(8), number_rows(batch)).words(5, 0)
        rows = _Rows(
            name_of_kernel,
            place(rng.normal(size=(batch, seq_len, 3 * width)), jnp.bfloat16),
            place(rng.normal(size=(batch, seq_len, width)), jnp.bfloat16),
            place(np.arange(seq_len) < lengths[:, None], jnp.int32),
            (words[0], words[1]),
        )
        by_kernel = _attend_by_kernel(rows, heads, rate)
        by_arrays = _attend_plainly(rows, heads, rate)
        errors = {
            name: _error(got, expected)
            for name, got, expected in zip(
                ("output", "gradient of qkv", "gradient of biases"),
                by_kernel,
                by_arrays,
                strict=True,
            )
        }
        wrong_bits = _count_wrong_bits(mesh, name_of_kernel, heads, width // heads, seq_len, rate)
    worst = max(errors.values())
    numbers = {"errors": errors, "wrong_mask_bits": wrong_bits}
    if worst > 2**-7 or wrong_bits:
        return Verdict(
            part,
            WRONG,
            f"it differs from plain attention by {worst:.4f} of the largest value, where bfloat16 "
            f"allows {2**-7:.4f}, and in {wrong_bits:,} bits of dropout masks; set "
            "config.compute.attention=plain and report it with this file",
            numbers,
        )
    sentence = (
        f"output and gradients equal plain attention within {worst:.4f} of the largest value; "
        "dropout masks are equal bit for bit"
    )
    return Verdict(part, FINE, sentence, numbers)


def _attend_by_kernel(rows: _Rows, heads: int, rate: float) -> tuple[jax.Array, ...]:
    """Compute output and gradients of qkv and of the biases by the kernel."""

    def on_a_device(
        qkv_BSE: jax.Array, dout_BSD: jax.Array, ids_BS: jax.Array, low_B: Any, high_B: Any
    ) -> tuple[jax.Array, ...]:
        def attend(qkv_BSE: jax.Array, bias_E: jax.Array) -> jax.Array:
            if rows.kernel == attention.KERNEL:
                return tpu_kernel.attend(qkv_BSE, bias_E, ids_BS, low_B, high_B, heads, rate)
            qkv_BSE += bias_E.astype(qkv_BSE.dtype)
            return gpu_kernel.attend(qkv_BSE, ids_BS, low_B, high_B, None, heads, rate)

        bias_E = jnp.zeros(qkv_BSE.shape[-1], jnp.float32)
        out_BSD, backward = jax.vjp(attend, qkv_BSE, bias_E)
        dqkv_BSE, dbias_E = backward(dout_BSD)
        return out_BSD, dqkv_BSE, jax.lax.psum(dbias_E, mesh_lib.BATCH_AXES)

    batch = PartitionSpec(mesh_lib.BATCH_AXES)
    mapped = jax.shard_map(
        on_a_device,
        in_specs=(batch,) * 5,
        out_specs=(batch, batch, PartitionSpec()),
        check_vma=False,
    )
    return jax.jit(mapped)(rows.qkv_BSE, rows.dout_BSD, rows.ids_BS, *rows.words)


def _attend_plainly(rows: _Rows, heads: int, rate: float) -> tuple[jax.Array, ...]:
    """Compute the same by plain attention in float32."""

    def run(
        qkv_BSE: jax.Array, dout_BSD: jax.Array, ids_BS: jax.Array, low_B: Any, high_B: Any
    ) -> Any:
        def drop(weights_BHST: jax.Array) -> jax.Array:
            keep = keep_mask(weights_BHST, low_B, high_B, rate, -1)
            return jnp.where(keep, weights_BHST / (1 - rate), 0.0)

        def attend(qkv_BSE: jax.Array, bias_E: jax.Array) -> jax.Array:
            parts = jnp.split(qkv_BSE + bias_E, 3, axis=-1)
            q, k, v = (jnp.reshape(part, (*part.shape[:2], heads, -1)) for part in parts)
            visible = attention.hide_other_examples(ids_BS)
            out = attention.attend(q, k, v, visible.mask, drop)
            return jnp.reshape(out, (*out.shape[:2], -1))

        bias_E = jnp.zeros(qkv_BSE.shape[-1], jnp.float32)
        out_BSD, backward = jax.vjp(attend, qkv_BSE, bias_E)
        return out_BSD, *backward(jax.sharding.reshard(dout_BSD, jax.typeof(out_BSD).sharding))

    wide = rows.qkv_BSE.astype(jnp.float32), rows.dout_BSD.astype(jnp.float32)
    with jax.default_matmul_precision("highest"):
        return tuple(jax.jit(run)(*wide, rows.ids_BS, *rows.words))


def _error(got: jax.Array, expected: jax.Array) -> float:
    """Return the largest difference as a share of the largest value."""
    difference = jnp.abs(got.astype(jnp.float32) - expected.astype(jnp.float32))
    return float(jnp.max(difference) / jnp.max(jnp.abs(expected.astype(jnp.float32))))


def _count_wrong_bits(
    mesh: Mesh, kernel: str, heads: int, head_width: int, seq_len: int, rate: float
) -> int:
    """Count the elements of a dropout mask in which the kernel differs from the hash.

    With equal scores and each value that of one key, the output spells the mask of head_width keys;
    one device's rows show all keys in turn, with the words of one row.
    """
    windows = seq_len // head_width
    batch = windows * mesh.size
    one_hot = np.zeros((batch, seq_len, heads * head_width), np.float32)
    for row, head, lane in np.ndindex(batch, heads, head_width):
        one_hot[row, row % windows * head_width + lane, head * head_width + lane] = 1
    nothing = np.zeros((batch, seq_len, 2 * heads * head_width), np.float32)

    def place(array: np.ndarray, dtype: Any) -> jax.Array:
        return jax.device_put(
            jnp.asarray(array, dtype), mesh_lib.batch_sharding(mesh, np.ndim(array))
        )

    low_B, high_B = (place(np.full(batch, word), jnp.uint32) for word in (0x12345678, 0x9ABCDEF0))
    rows = _Rows(
        kernel,
        place(np.concatenate([nothing, one_hot], -1), jnp.bfloat16),
        place(one_hot, jnp.bfloat16),
        place(np.ones((batch, seq_len)), jnp.int32),
        (low_B, high_B),
    )
    out_BSD, *_ = _attend_by_kernel(rows, heads, rate)
    seen_BSHK = np.asarray(out_BSD, np.float32).reshape(batch, seq_len, heads, head_width)
    like = jax.device_put(
        jnp.zeros((batch, heads, seq_len, seq_len), jnp.bfloat16), mesh_lib.batch_sharding(mesh, 4)
    )
    hashed = jax.jit(lambda x, low_B, high_B: keep_mask(x, low_B, high_B, rate, -1))
    keep = np.asarray(hashed(like, low_B, high_B))
    wrong = 0
    for row in range(batch):
        first = row % windows * head_width
        expected = keep[row, :, :, first : first + head_width].transpose(1, 0, 2)
        wrong += int(((seen_BSHK[row] > 0) != expected).sum())
    return wrong
