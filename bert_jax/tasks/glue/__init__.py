"""Open the tasks of GLUE; read specs.py (names, columns, labels), data.py, then task.py."""
