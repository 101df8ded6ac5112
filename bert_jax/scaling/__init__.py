"""Predict the loss of a larger run from smaller ones.

In: runs of several sizes and token counts. Out: a law of the held-out masked LM loss, with the
interval that it leaves open. Read `law`, then `fit`.
"""
