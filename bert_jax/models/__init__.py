"""The encoder and its heads as Flax NNX modules: built once, bound to parameters as values."""
