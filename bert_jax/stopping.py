"""An orderly stop: SIGINT and SIGTERM are noted, a second one ends the process at once."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class Interrupted(Exception):
    """The run was asked to stop, and is saved."""

    signal_number: int
    step: int


@contextlib.contextmanager
def noted(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call on_signal(number) at the first SIGINT or SIGTERM; later ones do what they did before."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        restore()
        on_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, note)
    try:
        yield
    finally:
        restore()
