"""The encoder and its heads as Flax NNX modules, used as values: built once, bound to parameters."""
