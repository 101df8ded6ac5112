"""Say what looks wrong about a run, from its records, its settings and its data.

In: lines of metrics.jsonl, a config, batches of examples. Out: findings, each a sentence with the
name of its rule and what to try. The trainer asks while it trains.
"""
