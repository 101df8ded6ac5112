"""On the path of a run of tests: process 1 gets batches of POISONED steps with a weight of NaN."""

import os
import sys
import threading
import time


def _poison() -> None:
    while not hasattr(sys.modules.get("bert_jax.feed"), "Feed"):
        time.sleep(0.01)
    feed = sys.modules["bert_jax.feed"].Feed
    train_batches = feed.train_batches
    poisoned = {int(step) for step in os.environ["POISONED"].split(",")}

    def with_bad_steps(self, index, first_step, rows):
        before = first_step + sum(phase.steps for phase in self.config.phases[:index])
        for step, batch in enumerate(train_batches(self, index, first_step, rows), before + 1):
            if step in poisoned:
                weights = batch["masked_lm_weights"].copy()
                weights[0] = float("nan")
                batch = batch | {"masked_lm_weights": weights}
            yield batch

    feed.train_batches = with_bad_steps


if "--process_id=1" in sys.orig_argv:
    threading.Thread(target=_poison, daemon=True).start()
