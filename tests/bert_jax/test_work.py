"""One context a piece of work: the watchdog hears its limit, the ledger its kind."""

import contextlib

from bert_jax.config import HostsConfig
from bert_jax.screen import Screen
from bert_jax.wall_time import Ledger
from bert_jax.work import Work


class Heard:
    """A watchdog that only remembers what it was told."""

    def __init__(self):
        self.limits = {}

    @contextlib.contextmanager
    def doing(self, what, limit_secs):
        self.limits[what] = limit_secs
        yield


def test_a_piece_of_work_has_its_limit_and_its_kind(tmp_path):
    heard, ledger = Heard(), Ledger(tmp_path, 0.0, True)
    work = Work(heard, ledger, HostsConfig(stuck_step_secs=7, stuck_secs=70), Screen(False))
    before = ledger.summary()["wall_secs"]
    with work.doing("saving", "the save of step 5"):
        pass
    with work.step(6):
        pass
    after = ledger.summary()["wall_secs"]
    assert list(heard.limits.values()) == [70, 7]
    of_the_save, of_the_step = heard.limits
    assert "save" in of_the_save and "step 6" in of_the_step
    grown = {kind for kind in after if after[kind] > before[kind]}
    assert {"saving", "training"} <= grown <= {"saving", "training", "starting"}
