"""Harm the batches of process 1, as the environment asks; runs import this from PYTHONPATH.

POISONED: the batches of these steps get a weight of NaN. NO_DATA: no more batches come while the
file of that name exists.
"""

import os
import sys
import threading
import time


def _harm() -> None:
    while not hasattr(sys.modules.get("bert_jax.trainer.feed"), "StoreFeed"):
        time.sleep(0.01)
    feed = sys.modules["bert_jax.trainer.feed"].StoreFeed
    train_batches = feed.train_batches
    poisoned = {int(step) for step in os.environ.get("POISONED", "0").split(",")}

    def harmed_batches(self, index, first_step, rows):
        before = first_step + sum(phase.steps for phase in self.config.phases[:index])
        for step, batch in enumerate(train_batches(self, index, first_step, rows), before + 1):
            while os.path.exists(os.environ.get("NO_DATA", "")):
                time.sleep(0.1)
            if step in poisoned:
                weights = batch["masked_lm_weights"].copy()
                weights[0] = float("nan")
                batch = batch | {"masked_lm_weights": weights}
            yield batch

    feed.train_batches = harmed_batches


if "--process_id=1" in sys.orig_argv:
    threading.Thread(target=_harm, daemon=True).start()
