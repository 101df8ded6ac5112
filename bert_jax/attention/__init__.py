"""Attention of a sequence over itself: which keys are visible, which implementation is taken."""

import dataclasses

import jax

from bert_jax.attention.xla import attend, padding_mask, same_example_mask

__all__ = ["Visible", "attend", "same_example", "unpadded"]


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
