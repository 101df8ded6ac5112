"""Define which keys a query may attend to, and choose the implementation of attention.

Dimensions: B batch, S queries, T keys.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig
from bert_jax.model.attention import blocks, cudnn, flash, tpu_kernel
from data_pipeline.io import Refused

# blocks.py is plain JAX: all scores of a row at once, or blocks of a long row; tpu_kernel.py is a
# TPU kernel for short rows, flash.py one for long rows, windows and rotary positions; cudnn.py
# calls cuDNN's kernel on NVIDIA GPUs.
PLAIN, KERNEL, FLASH, BLOCKS = "plain", "the TPU kernel", "flash attention", "blocks"
CUDNN = "cuDNN attention"
LONG_ROW = 1024  # tokens, from which blocks were measured to be faster than plain attention


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visible:
    """Hold which keys a query may attend to, in two forms.

    Plain attention and cuDNN read `mask`; the others read `ids_BS`, `width` and `is_causal`.
    """

    mask: jax.Array  # bool[B or 1, 1, S or 1, T]
    # int32: a query sees the keys with its own id. None if ids cannot express the mask; then only
    # the plain implementation computes it.
    ids_BS: jax.Array | None = None
    # A query also sees no key more than width // 2 positions away; 0 is no window.
    width: int = dataclasses.field(default=0, metadata={"static": True})
    # A query also sees no later key.
    is_causal: bool = dataclasses.field(default=False, metadata={"static": True})


def hide_padding(input_mask_BS: jax.Array) -> Visible:
    """Make every key visible that is not padding."""
    return Visible((input_mask_BS != 0)[:, None, None, :], input_mask_BS)


def hide_other_examples(example_ids_BS: jax.Array) -> Visible:
    """Make the keys of a query's own example visible in a packed row.

    Padding counts as an example too, because a query without a visible key would attend to all.
    """
    mask = example_ids_BS[:, None, :, None] == example_ids_BS[:, None, None, :]
    return Visible(mask, example_ids_BS)


def hide_outside_window(visible: Visible, seq_len: int, width: int) -> Visible:
    """Hide keys more than half a window away; the tokens of an example must be contiguous."""
    places = jnp.arange(seq_len, dtype=jnp.int32)
    is_near_SS = jnp.abs(places[:, None] - places[None, :]) <= width // 2
    return Visible(visible.mask & is_near_SS, visible.ids_BS, width, visible.is_causal)


def hide_later(visible: Visible, seq_len: int) -> Visible:
    """Hide the keys after a query; the tokens of an example must be contiguous."""
    places = jnp.arange(seq_len, dtype=jnp.int32)
    mask = visible.mask & (places[:, None] >= places[None, :])
    return Visible(mask, visible.ids_BS, visible.width, is_causal=True)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Name the implementation of each kind of layer, and describe the choice for the screen."""

    complete: str  # layers that attend to the complete row
    window: str  # layers with a window
    words: str


def choose(
    setting: str,
    device_kind: str,
    seq_len: int,
    model: ModelConfig,
    dtype: jnp.dtype,
    model_size: int,
    has_dropout: bool | None = None,
) -> Choice:
    """Choose the implementations for config.compute.attention on a device and a row length.

    device_kind is JAX's name of a device, or a chip ("v5e"). model_size is the size of the mesh's
    model axis. has_dropout is whether attention weights are dropped; None takes the config's rate.

    Raises:
      Refused: the setting requires an implementation that does not support this attention.
    """
    if has_dropout is None:
        has_dropout = model.attention_probs_dropout_prob > 0
    chooser = _Chooser(setting, device_kind, seq_len, model, dtype, model_size, has_dropout)
    complete, words = chooser.choose_layer(0)
    if model.global_attn_every_n_layers == 1:
        return Choice(complete, complete, words)
    window, window_words = chooser.choose_layer(model.local_attention)
    if words != window_words:
        words = f"{words}; with a window {window_words}"
    return Choice(complete, window, words)


@dataclasses.dataclass(frozen=True)
class _Chooser:
    """Choose the implementation of a layer from the arguments of `choose`."""

    setting: str
    device_kind: str
    seq_len: int
    model: ModelConfig
    dtype: jnp.dtype
    model_size: int
    has_dropout: bool

    @property
    def only_plain(self) -> str | None:
        return _explain_plain_only(self.model, self.has_dropout)

    @property
    def shape(self) -> tuple[str, int, int, int, jnp.dtype]:
        """Return the arguments of each kernel's explain_refusal."""
        heads = self.model.num_attention_heads
        return self.device_kind, self.seq_len, heads, self.model.hidden_size // heads, self.dtype

    def choose_layer(self, width: int) -> tuple[str, str]:
        """Return the implementation for a window width (0: no window), and the choice in words."""
        if self.setting == "plain":
            return PLAIN, "plain, as config.compute.attention says"
        if self.setting == "blocks":
            if self.only_plain:
                raise Refused(
                    f"config.compute.attention is 'blocks', but {self.only_plain}; set it to auto, "
                    "which takes plain attention"
                )
            return BLOCKS, "blocks, as config.compute.attention says"
        blocks_pay = not self.only_plain and _are_blocks_worthwhile(self.seq_len, width)
        if self.setting == "auto" and cudnn.is_gpu(self.device_kind) and width and blocks_pay:
            return BLOCKS, BLOCKS  # cuDNN has no two-sided window, only a mask
        refusals = self._refuse_kernels(width)
        for name, refusal in refusals.items():
            if refusal is None:
                return name, name
        reasons = [refusal for refusal in refusals.values() if refusal is not None]
        if self.setting == "kernel":
            raise Refused(
                f"config.compute.attention is 'kernel', but {', and '.join(reasons)}; set it to "
                "auto, which takes another implementation where no kernel fits"
            )
        return (BLOCKS, BLOCKS) if blocks_pay else (PLAIN, f"plain: {self._explain_plain(reasons)}")

    def _refuse_kernels(self, width: int) -> dict[str, str | None]:
        """Explain why each kernel of this kind of device does not fit; None if it does."""
        whole = ""
        if self.model_size > 1:
            whole = f"requires all heads on one device, not on {self.model_size}"
        if cudnn.is_gpu(self.device_kind):
            refusal = cudnn.explain_refusal(*self.shape)
            refusal = refusal or _explain_plain_only(self.model, self.has_dropout, CUDNN)
            return {CUDNN: refusal or (f"{CUDNN} {whole}" if whole else None)}
        short = _explain_unsupported(self.model, width) or tpu_kernel.explain_refusal(*self.shape)
        long = self.only_plain or flash.explain_refusal(*self.shape)
        return {
            KERNEL: short or (f"the attention kernel {whole}" if whole else None),
            FLASH: long or (f"flash attention {whole}" if whole else None),
        }

    def _explain_plain(self, reasons: list[str]) -> str:
        """Explain plain attention: dropout, if only dropout rules out flash, else reasons[0]."""
        if not self.has_dropout or self.model.scores_distances or self.model_size > 1:
            return reasons[0]
        if flash.explain_refusal(*self.shape) is not None:
            return reasons[0]
        rate = self.model.attention_probs_dropout_prob
        return (
            "flash attention takes these rows, but without dropout, which "
            f"config.model.attention_probs_dropout_prob sets to {rate}; set it to 0.0"
        )


def find_reference(model: ModelConfig) -> str:
    """Return the setting that takes no kernel: blocks where they support this attention."""
    has_dropout = model.attention_probs_dropout_prob > 0
    return "plain" if _explain_plain_only(model, has_dropout) else BLOCKS


def _explain_plain_only(
    model: ModelConfig, has_dropout: bool, name: str = "attention of long rows"
) -> str | None:
    """Explain why blocks, flash attention and cuDNN do not support this model; None if they do."""
    if model.scores_distances:
        return f"{name} has no {model.position_embedding_type} positions"
    if has_dropout:
        rate = model.attention_probs_dropout_prob
        return (
            f"{name} has no dropout of its probabilities, which "
            f"config.model.attention_probs_dropout_prob sets to {rate}"
        )
    return None


def _explain_unsupported(model: ModelConfig, width: int) -> str | None:
    """Explain why the kernel for short rows does not support this layer; None if it does."""
    if model.position_embedding_type != "learned":
        return f"the attention kernel has no {model.position_embedding_type} positions"
    return "the attention kernel has no windows" if width else None


def _are_blocks_worthwhile(seq_len: int, width: int) -> bool:
    """Return whether rows are long enough for blocks to be faster than all scores at once."""
    if not width:
        return seq_len >= LONG_ROW
    # A block of queries sees far fewer keys than the row has.
    return seq_len > 2 * blocks.choose_window_block(width) + width


def choose_here(
    setting: str,
    visible: Visible,
    seq_len: int,
    model: ModelConfig,
    dtype: jnp.dtype,
    has_dropout: bool,
) -> str:
    """Choose the implementation for a layer while it is traced.

    Kernels run only on per-device arrays: inside a shard_map that is manual over all mesh axes, as
    in train_step/step.py.
    """
    if visible.ids_BS is None:
        return PLAIN
    mesh = jax.sharding.get_abstract_mesh()
    device = mesh.abstract_device
    if device is not None and set(mesh.manual_axes) == set(mesh.axis_names):
        kind, model_size = device.device_kind, mesh.shape["model"]
    else:
        kind, model_size = "arrays of several devices", 1
        setting = "auto" if setting == "kernel" else setting
    choice = choose(setting, kind, seq_len, model, dtype, model_size, has_dropout)
    return choice.window if visible.width else choice.complete
