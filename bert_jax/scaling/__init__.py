"""Predict the loss of a larger run from smaller ones, and choose what a budget buys.

In: runs of several sizes and token counts. Out: a law of the held-out masked LM loss, with the
interval that it leaves open; with a price and a slice, the run to train. Read `law`, then `fit`,
`candidates`, `budget`, `budget_report`.
"""
