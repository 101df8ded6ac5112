"""Compare systems on one store: rows x seeds, each a run in a folder of its own, scored alike.

In: a StudyConfig and a folder. Out: runs that are never repeated, study.json, study.md, study.png.

Read row_kind.py (how a row is trained and scored), pretrained.py and baselines.py (the kinds),
runner.py (what is run, and in which order), then statistics.py and report.py.
"""
