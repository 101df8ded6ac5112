"""Frame labeled examples: from token ids and labels to the batches of fine-tuning and prediction.

Read in this order: framing (ids to a row), rows (rows to batches), packing (several examples in a
row), windows (rows of a text that is longer than one), lines (lines of text to rows).
"""
