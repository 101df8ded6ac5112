"""Text to batches for pre-training: documents, vocabularies, the store, sentence pairs, masks."""

import sys

from data_pipeline import ctrl_c, live_line

# `python -m data_pipeline.ENTRY` is about to import libraries; others keep their own signals.
if sys.argv[0] == "-m" and any(name.startswith("data_pipeline.") for name in sys.orig_argv[1:]):
    ctrl_c.ends_the_process()
    live_line.show_imports()
