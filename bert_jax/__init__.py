"""Pre-train BERT (masked language model and next sentence prediction) in JAX and Flax."""

__version__ = "0.1.0"
