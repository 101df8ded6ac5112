"""Pre-train BERT (masked language model and next sentence prediction) in JAX and Flax."""

import sys

from data_pipeline import ctrl_c, live_line

__version__ = "0.1.0"

# `python -m bert_jax.ENTRY` is about to import libraries; another program's signals are its own.
if sys.argv[0] == "-m" and any(name.startswith("bert_jax.") for name in sys.orig_argv[1:]):
    ctrl_c.ends_the_process()
    live_line.show_imports()
