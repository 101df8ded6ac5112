"""Compute self-attention, by the implementation that fits the device and the row length.

Read blocks (the formula, and its form for long rows), dispatch (visible keys, and the choice of an
implementation), then tpu_kernel (short rows), flash (long rows), cudnn (rows on NVIDIA GPUs);
verify compares the kernels with blocks on the devices at hand.
"""

from bert_jax.model.attention.blocks import attend
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
