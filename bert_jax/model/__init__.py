"""Build BERT as Flax NNX modules, declare its parameters, and bind them as values.

In: sizes, settings of how to compute, a batch. Out: hidden vectors, logits and losses.
Read bert (the model), embeddings, encoder, relative, layers, heads (with the losses), ops; then
dropout and attention/: dispatch chooses between plain attention and faster ones. flops counts what
training costs.
"""
