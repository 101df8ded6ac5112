"""Fine-tuning: one file a kind of task."""
