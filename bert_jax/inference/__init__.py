"""Run a trained model forward over texts, rows and stores.

In: a PlacedModel of interop.pretrained, and text lines, rows of token ids or a store. Out: guesses
for masked words, hidden states in files, pseudo-log-likelihoods, retrieval scores, store scores.

Read batches first, which runs rows through a model; then fill_mask, hidden_states, vector_files and
sentence_modules, pseudo_likelihood, store_scores, retrieval.
"""
