"""Open the tasks of GLUE; read specs.py (names, columns, labels), then task.py."""
