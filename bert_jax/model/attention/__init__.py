"""Compute self-attention: dispatch says which keys are visible and chooses an implementation."""

from bert_jax.model.attention.dispatch import (
    Choice,
    Visible,
    attend,
    choose,
    hide_later,
    hide_other_examples,
    hide_outside_window,
    hide_padding,
    takes_kernel,
)

__all__ = [
    "Choice",
    "Visible",
    "attend",
    "choose",
    "hide_later",
    "hide_other_examples",
    "hide_outside_window",
    "hide_padding",
    "takes_kernel",
]
