"""Save and restore a run with Orbax, verify checkpoints and quarantine damaged ones.

In: a TrainState and a folder or gs:// address. Out: CHECKPOINTS/STEP/ with the arrays and a
receipt: a fingerprint of every array, the loop's numbers and the record of the run.

Read manager first (what a run calls); then reader (read without writing), directory (receipts,
damage, quarantine), and arrays (names, padding, fingerprints). No other folder imports Orbax.
"""
