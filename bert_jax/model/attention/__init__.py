"""Compute self-attention: dispatch says which keys are visible and chooses an implementation.

Read reference (the formula), then tpu_kernel (short rows), flash and blocks (long rows).
"""

from bert_jax.model.attention.dispatch import (
    BLOCKS,
    FLASH,
    KERNEL,
    PLAIN,
    Choice,
    Visible,
    choose,
    choose_here,
    hide_later,
    hide_other_examples,
    hide_outside_window,
    hide_padding,
)
from bert_jax.model.attention.reference import attend

__all__ = [
    "BLOCKS",
    "FLASH",
    "KERNEL",
    "PLAIN",
    "Choice",
    "Visible",
    "attend",
    "choose",
    "choose_here",
    "hide_later",
    "hide_other_examples",
    "hide_outside_window",
    "hide_padding",
]
