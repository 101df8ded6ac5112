"""Attention over an array triple (queries, keys, values); `attend` is the implementation in use."""

from bert_jax.attention.xla import attend

__all__ = ["attend"]
