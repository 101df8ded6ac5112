"""Say which keys a query may attend to, choose the implementation, and compute the plain one.

Dimensions: B batch, S queries, T keys, H heads, K head width.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.attention import tpu_kernel

# Added to the scores of keys that may not be seen (modeling.py@eedf5716ce): exp of it is 0.
HIDDEN_SCORE = -10_000.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visible:
    """Hold which keys a query may attend to; an implementation reads one of the two."""

    mask: jax.Array  # bool[B or 1, 1, S or 1, T]
    ids_BS: jax.Array | None = None  # int32: a query sees the keys with its own number; None where
    #                                  the mask is another, which the plain implementation alone has


def hide_padding(input_mask_BS: jax.Array) -> Visible:
    """Let queries see every key that is not padding."""
    return Visible((input_mask_BS != 0)[:, None, None, :], input_mask_BS)


def hide_other_examples(example_ids_BS: jax.Array) -> Visible:
    """Let queries see the keys of their own example in a packed row.

    Padding counts as one more example: a softmax over no key would be one over all of them.
    """
    mask = example_ids_BS[:, None, :, None] == example_ids_BS[:, None, None, :]
    return Visible(mask, example_ids_BS)


def hide_outside_window(visible: Visible, seq_len: int, width: int) -> Visible:
    """Hide keys more than half a window away; the rows of an example are next to each other."""
    places = jnp.arange(seq_len, dtype=jnp.int32)
    is_near_SS = jnp.abs(places[:, None] - places[None, :]) <= width // 2
    return Visible(visible.mask & is_near_SS)


def hide_later(visible: Visible, seq_len: int) -> Visible:
    """Hide the keys behind a query; the rows of an example are next to each other."""
    places = jnp.arange(seq_len, dtype=jnp.int32)
    return Visible(visible.mask & (places[:, None] >= places[None, :]))


@dataclasses.dataclass(frozen=True)
class Choice:
    """Name the chosen implementation, also in words for the screen."""

    takes_kernel: bool
    words: str


def explain_unsupported(model: ModelConfig) -> str | None:
    """Say what the attention of a model has that the kernel does not compute; None for nothing."""
    if model.position_embedding_type != "learned":
        return f"the attention kernel has no {model.position_embedding_type} positions"
    if model.global_attn_every_n_layers > 1:
        return "the attention kernel has no windows"
    if model.is_causal:
        return "the attention kernel does not hide later tokens"
    return None


def choose(
    setting: str,
    device_kind: str,
    seq_len: int,
    model: ModelConfig,
    dtype: jnp.dtype,
    model_size: int,
) -> Choice:
    """Choose the implementation of config.compute.attention on these devices, for this length.

    device_kind is what JAX calls a device, or a chip ("v5e"); model_size is the length of the
    mesh's model axis.

    Raises:
      ValueError: the setting requires the kernel, which does not support this.
    """
    if setting == "plain":
        return Choice(False, "plain, as config.compute.attention says")
    heads, head_width = model.num_attention_heads, model.hidden_size // model.num_attention_heads
    refused = explain_unsupported(model) or tpu_kernel.explain_refusal(
        device_kind, seq_len, heads, head_width, dtype
    )
    if refused is None and model_size > 1:
        refused = f"the attention kernel requires all heads on one device, not on {model_size}"
    if refused is None:
        return Choice(True, "the TPU kernel")
    if setting == "kernel":
        raise ValueError(
            f"config.compute.attention is 'kernel', but {refused}; set it to auto, which takes "
            "plain attention where the kernel does not fit"
        )
    return Choice(False, f"plain: {refused}")


def takes_kernel(
    setting: str, visible: Visible, seq_len: int, model: ModelConfig, dtype: jnp.dtype
) -> bool:
    """Tell whether the code being traced uses the kernel: only on a device's own part of arrays.

    That is inside a shard_map that is manual over all axes of the mesh, as in train_step/step.py.
    """
    mesh = jax.sharding.get_abstract_mesh()
    device = mesh.abstract_device
    if visible.ids_BS is None or device is None or set(mesh.manual_axes) != set(mesh.axis_names):
        return False
    return choose(
        setting, device.device_kind, seq_len, model, dtype, mesh.shape["model"]
    ).takes_kernel


def attend(
    q_BSHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    mask: jax.Array,
    drop: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Compute the softmax of scaled scores in float32, dropout on it, and the sum of values.

    Shapes: float[B,S,H,K], float[B,T,H,K] twice, bool[B or 1, 1, S or 1, T] -> float[B,S,H,K].
    mask is True where a query may attend to a key; drop is applied to the weights[B,H,S,T]. This is
    the reference of the kernel, on any device.

    Source: Vaswani et al. 2017, section 3.2.1; modeling.py@eedf5716ce attention_layer.
    """
    dtype = q_BSHK.dtype
    scale = jnp.asarray(q_BSHK.shape[-1] ** -0.5, dtype)
    scores_BHST = ops.einsum(
        "bshk,bthk->bhst", q_BSHK * scale, k_BTHK, ("batch", "heads", None, None), jnp.float32
    )
    scores_BHST = scores_BHST + jnp.where(mask, 0.0, HIDDEN_SCORE)
    weights_BHST = drop(jax.nn.softmax(scores_BHST, axis=-1).astype(dtype))
    return ops.einsum("bhst,bthk->bshk", weights_BHST, v_BTHK, ("batch", None, "heads", None))
