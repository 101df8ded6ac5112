"""Train and extract with ours and Hugging Face's PyTorch, from the same weights, for parity.py.

In: GLUE tasks, a model, a store, and the Python of the other side. Out: losses, scores and times of
each side. Read `pairs` first, then `vectors`, `pretraining` and `report`; a `*_worker` of theirs
runs in the other environment.
"""
