"""Compare systems on one store: train each row with several seeds and score all runs alike.

In: a StudyConfig and a workdir. Out: a folder for each run, study.json, study.md, study.png. A
finished run is not repeated.

Read row_kind.py (what a kind of row defines), pretrained.py and baselines.py (the kinds), runner.py
(the order of runs, resuming), identity.py (which runs are equal), then statistics.py, report.py and
plan.py.
"""
