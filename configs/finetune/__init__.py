"""Define fine-tuning runs: one file per kind of task."""
