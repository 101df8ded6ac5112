"""Show a run: on the terminal, in metrics.jsonl, TensorBoard and Weights & Biases, as plots.

In: numbers of an interval or an evaluation. Out: lines, records, curves.png.
Read console, metrics_writer, plots, statistics.
"""
