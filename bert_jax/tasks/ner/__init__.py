"""Open named-entity tasks; read conlleval.py (entities, scores), data.py (files), then task.py."""
