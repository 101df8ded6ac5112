"""Say what looks wrong about a run, from its records, its settings and its data.

In: lines of metrics.jsonl, a config, batches of examples. Out: findings, each a sentence with the
name of its rule and what to try; the trainer asks while it trains. And curves of a run of any
length, live or killed, at most some thousand points each.

Read curves.py and run_state.py for the records of a run, comparison.py for how several differ,
run_report.py for words, costs and the page; rules.py and watch.py for findings.
"""
