"""Time a training step and Hugging Face's: sizes and batches, workers of each side, tables.

In: the sizes that a command names and the Python of the other side. Out: ratios of times, and the
largest difference of gradients. Read `side_by_side`, then `cases`, `workers`, and a `*_worker`.
"""
