"""Pre-train BERT (masked language model and next sentence prediction) in JAX and Flax."""

from data_pipeline.cli.main import start_command

__version__ = "0.1.0"

start_command("bert_jax")
