"""Compute self-attention: dispatch says which keys are visible and chooses an implementation.

Read reference (the formula), then blocks and splash (long rows) and tpu_kernel (short rows).
"""

from bert_jax.model.attention.dispatch import (
    BLOCKS,
    KERNEL,
    PLAIN,
    SPLASH,
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
    "KERNEL",
    "PLAIN",
    "SPLASH",
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
