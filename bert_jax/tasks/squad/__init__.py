"""Open SQuAD 1.1 and 2.0; read data.py, windows.py, answers.py, metrics.py, then task.py."""
