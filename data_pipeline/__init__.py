"""Text to batches for BERT pre-training: documents, vocabularies, the store, sentence pairs and masks."""
