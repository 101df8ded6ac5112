"""On the path of a run of tests: process 1 gets no more batches while the file NO_DATA is there."""

import os
import pathlib
import sys
import threading
import time


def _take_the_data_away() -> None:
    while not hasattr(sys.modules.get("bert_jax.placed_batches"), "PlacedBatches"):
        time.sleep(0.01)
    batches = sys.modules["bert_jax.placed_batches"].PlacedBatches
    made = batches._made

    def waiting_for_data(self):
        while pathlib.Path(os.environ["NO_DATA"]).exists():
            time.sleep(0.1)
        return made(self)

    batches._made = waiting_for_data


if "--process_id=1" in sys.orig_argv:
    threading.Thread(target=_take_the_data_away, daemon=True).start()
