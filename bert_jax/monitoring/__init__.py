"""Report what looks wrong in a run, from its records, its settings and its data.

In: lines of metrics.jsonl, a config, batches of examples. Out: findings, each with a rule, a
sentence and advice, which the trainer prints while it trains; and curves of a run of any length,
live or killed, with at most some thousand points each.

Read run_state.py for the records of a run, run_report.py for the text, the costs, the differences
of runs and the page; rules.py and watch.py for findings.
"""
