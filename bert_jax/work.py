"""What a process is doing, said once for the watchdog, with its limit, and for the ledger."""

import contextlib
from collections.abc import Iterator

from bert_jax.config import HostsConfig
from bert_jax.wall_time import TRAINING, Ledger
from bert_jax.watchdog import Watchdog


class Work:
    """The pieces of work of a run."""

    def __init__(self, watchdog: Watchdog, ledger: Ledger, hosts: HostsConfig) -> None:
        self.ledger = ledger
        self._watchdog, self._hosts = watchdog, hosts

    @contextlib.contextmanager
    def doing(self, kind: str, what: str) -> Iterator[None]:
        """A piece of work that may take config.hosts.stuck_secs."""
        with self._watchdog.doing(what, self._hosts.stuck_secs), self.ledger.spent(kind):
            yield

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Giving this step to the devices, or waiting for them; config.hosts.stuck_step_secs."""
        what = f"step {number}, or one of the two before it,"
        with self._watchdog.doing(what, self._hosts.stuck_step_secs), self.ledger.spent(TRAINING):
            yield
