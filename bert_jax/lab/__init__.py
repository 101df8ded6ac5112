"""Compare systems on one store: train each row with several seeds, in several sizes, alike scored.

In: a StudyConfig or a LadderConfig, and a workdir. Out: a folder per run, and a report: study.json,
study.md, study.png; for a ladder the law of the held-out loss. A finished run is not repeated.

Read study_config.py, row_kinds/ (how a row is trained and scored), runner.py (the order of runs,
resuming), identity.py (which runs are equal), then report.py and plan.py; ladder.py and
ladder_report.py stand on them. grid.py, grid_runs.py and grid_report.py fine-tune over rates,
probe.py on the checkpoints of a run. baselines/ trains what came before BERT.
"""
