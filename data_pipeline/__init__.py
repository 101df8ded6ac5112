"""Text to batches for pre-training: documents, vocabularies, the store, sentence pairs, masks."""
