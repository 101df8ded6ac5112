"""Tasks to fine-tune a pre-trained encoder on: files -> rows, logits -> answers and scores."""
