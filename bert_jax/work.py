"""What a process is doing, said once: for the watchdog, with its limit, the ledger, the screen."""

import contextlib
from collections.abc import Callable, Iterator

from bert_jax.config import HostsConfig
from bert_jax.screen import Screen
from bert_jax.wall_time import TRAINING, Ledger
from bert_jax.watchdog import Watchdog


class Work:
    """The pieces of work of a run."""

    def __init__(
        self, watchdog: Watchdog, ledger: Ledger, hosts: HostsConfig, screen: Screen
    ) -> None:
        self.ledger = ledger
        self._watchdog, self._hosts, self._screen = watchdog, hosts, screen

    @contextlib.contextmanager
    def doing(self, kind: str, what: str) -> Iterator[Callable[[str], None]]:
        """A piece of work that may take config.hosts.stuck_secs.

        Yields a function that shows other words for it on the screen.
        """
        with (
            self._watchdog.doing(what, self._hosts.stuck_secs),
            self.ledger.spent(kind),
            self._screen.spinning(what) as show,
        ):
            yield show

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Giving this step to the devices, or waiting for them; config.hosts.stuck_step_secs."""
        what = f"step {number}, or one of the two before it,"
        with self._watchdog.doing(what, self._hosts.stuck_step_secs), self.ledger.spent(TRAINING):
            yield
