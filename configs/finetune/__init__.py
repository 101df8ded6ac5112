"""Fine-tuning: one file per kind of task."""
