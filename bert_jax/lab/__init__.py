"""Compare systems on one store: train each row with several seeds, in several sizes, alike scored.

In: a StudyConfig or a LadderConfig, and a workdir. Out: a folder per run, and a report: study.json,
study.md, study.png; for a ladder the law of the held-out loss. A finished run is not repeated.

Read row_kind.py (what a kind of row defines), pretrained.py and baselines.py (the kinds), runner.py
(the order of runs, resuming), identity.py (which runs are equal), then report.py and plan.py;
ladder.py and ladder_report.py stand on them.
"""
