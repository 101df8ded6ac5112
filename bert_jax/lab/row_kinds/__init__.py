"""Define how the rows of each kind are checked, trained, scored and given a task.

In: a StudyRow. Out: a RowKind, a record of functions. Read row_kind.py, then pretrained.py and
baseline_rows.py; kinds.py lists them by name.
"""
