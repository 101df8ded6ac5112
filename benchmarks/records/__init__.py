"""Train a recipe from several seeds, and score every model on the same hidden tokens."""
