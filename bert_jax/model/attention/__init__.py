"""Compute self-attention, by the implementation that fits the device and the row length.

Read reference (the formula), dispatch (visible keys, and the choice of an implementation), then
tpu_kernel (short rows), flash and blocks (long rows), cudnn (rows on NVIDIA GPUs);
verify compares the kernels with blocks on the devices at hand.
"""

from bert_jax.model.attention.dispatch import (
    BLOCKS,
    CUDNN,
    FLASH,
    KERNEL,
    LONG_ROW,
    PLAIN,
    Choice,
    Visible,
    choose,
    choose_here,
    find_reference,
    hide_later,
    hide_other_examples,
    hide_outside_window,
    hide_padding,
)
from bert_jax.model.attention.reference import attend

__all__ = [
    "BLOCKS",
    "CUDNN",
    "FLASH",
    "KERNEL",
    "LONG_ROW",
    "PLAIN",
    "Choice",
    "Visible",
    "attend",
    "choose",
    "choose_here",
    "find_reference",
    "hide_later",
    "hide_other_examples",
    "hide_outside_window",
    "hide_padding",
]
