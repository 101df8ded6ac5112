"""Compare systems, settings and checkpoints: train many runs, over seeds and sizes, alike scored.

In: a StudyConfig, a grid's values, a run to probe or a ladder's sizes, and a workdir. Out: a folder
per run, numbers, a table and a picture; for a ladder the law of the held-out loss. A finished run
is not repeated.

Read runs.py (child processes at once, and what a folder's runs are). A study: study_config.py,
row_kind.py and kinds.py (how a row is trained and scored), study.py, then report.py and plan.py;
ladder.py and ladder_report.py stand on it. grid.py fine-tunes over rates, probe.py on the
checkpoints of a run. baselines/ trains what came before BERT.
"""
