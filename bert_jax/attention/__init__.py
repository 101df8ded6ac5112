"""Attention of a sequence over itself: which keys are visible, which implementation is taken."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.attention import tpu_kernel
from bert_jax.attention.xla import attend, padding_mask, same_example_mask

__all__ = ["Choice", "Visible", "attend", "choose", "same_example", "takes_kernel", "unpadded"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visible:
    """Which keys a query may attend to; an implementation reads one of the two."""

    mask: jax.Array  # bool[B or 1, 1, S or 1, T]
    ids_BS: jax.Array | None = None  # int32: a query sees the keys with its own number; None where
    #                                  the mask is another, which the plain implementation alone has


def unpadded(input_mask_BS: jax.Array) -> Visible:
    """Every key that is not padding."""
    return Visible(padding_mask(input_mask_BS), input_mask_BS)


def same_example(example_ids_BS: jax.Array) -> Visible:
    """The keys of the query's own example in a packed row."""
    return Visible(same_example_mask(example_ids_BS), example_ids_BS)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The implementation, and in words for the screen."""

    takes_kernel: bool
    words: str


def choose(
    setting: str,
    device_kind: str,
    seq_len: int,
    heads: int,
    head_width: int,
    dtype: jnp.dtype,
    model_size: int,
) -> Choice:
    """What config.compute.attention comes to on these devices, for rows of this length.

    device_kind is what JAX calls a device, or a chip ("v5e"); model_size is the length of the
    mesh's model axis.

    Raises:
      ValueError: the kernel is demanded and does not take this.
    """
    if setting == "plain":
        return Choice(False, "plain, as config.compute.attention says")
    refused = tpu_kernel.refusal(device_kind, seq_len, heads, head_width, dtype)
    if refused is None and model_size > 1:
        refused = f"the attention kernel wants all heads on one device, not on {model_size}"
    if refused is None:
        return Choice(True, "the TPU kernel")
    if setting == "kernel":
        raise ValueError(
            f"config.compute.attention is 'kernel', but {refused}; set it to auto, which takes "
            "plain attention where the kernel does not fit"
        )
    return Choice(False, f"plain: {refused}")


def takes_kernel(
    setting: str, visible: Visible, seq_len: int, heads: int, head_width: int, dtype: jnp.dtype
) -> bool:
    """Whether the code being traced takes the kernel: only where arrays are a device's own part.

    That is inside a shard_map that is manual over the whole mesh, as in step.py.
    """
    mesh = jax.sharding.get_abstract_mesh()
    device = mesh.abstract_device
    if visible.ids_BS is None or device is None or set(mesh.manual_axes) != set(mesh.axis_names):
        return False
    return choose(
        setting, device.device_kind, seq_len, heads, head_width, dtype, mesh.shape["model"]
    ).takes_kernel
