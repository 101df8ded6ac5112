"""Compare systems, settings and checkpoints: train many runs over seeds and sizes, scored alike.

In: a StudyConfig, a grid's values, a run to probe or a ladder's sizes, and a workdir. Out: a folder
per run, numbers, a table and a picture; for a ladder the law of the held-out loss. A finished run
is not repeated.

Read runs.py (child processes, and the record of a folder's runs). A study: study_config.py,
row_kind.py and kinds.py (how a row is trained and scored), study.py, then report.py and plan.py;
ladder.py and ladder_report.py use it. grid.py fine-tunes over rates, probe.py from the checkpoints
of a run. baselines/ trains what came before BERT.
"""
