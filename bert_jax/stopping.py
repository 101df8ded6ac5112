"""An orderly stop: SIGINT and SIGTERM are noted, a second one ends the process at once."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The run was asked to stop by a signal, and is saved after this step."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by signal {signal_number} after step {step}")
        self.signal_number = signal_number
        self.step = step


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
