"""An orderly stop: asked for by a signal, obeyed by all processes after the same step."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

from jax.experimental import multihost_utils

from bert_jax import processes
from bert_jax.exit_codes import BY_SIGNAL
from data_pipeline.live_line import LINE

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODES = tuple(BY_SIGNAL + number for number in STOP_SIGNALS)


class Interrupted(Exception):
    """The run was asked to stop, and is saved as it is after this step."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by signal {signal_number} after step {step}")
        self.signal_number = signal_number
        self.step = step


class Stop:
    """Whether the run is to stop, after SIGINT, SIGTERM or the platform's notice to any process.

    Alone, a process notes both signals, and a second one does what it did before. In several
    SIGTERM is jax's: its C++ handler tells all processes, and so does the notice that a machine
    will be taken away. A handler of Python's would silently replace it, so SIGINT is passed on as
    SIGTERM, and a second one ends the process.
    """

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._is_asked_here = False
        self._polls = 0
        self._is_reached = False

    @property
    def signal_number(self) -> int:
        """The signal that this process got, SIGTERM where another one did."""
        return self._signals[0] if self._signals else signal.SIGTERM

    def is_asked(self) -> bool:
        """Whether to stop now.

        Several processes ask at the same points of the run, each as often as the others: those
        points are counted, and all stop at one that none has passed.
        """
        if not processes.are_joined():
            return bool(self._signals) or self._is_asked_here
        if not self._is_reached:
            self._polls += 1
            self._is_reached = multihost_utils.reached_preemption_sync_point(self._polls)
        return self._is_reached

    def ask(self) -> None:
        """Have all processes stop after a step; any thread of any of them may ask."""
        self._is_asked_here = True
        if processes.are_joined():
            os.kill(os.getpid(), signal.SIGTERM)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note the signals that come inside the context."""
        numbers = (signal.SIGINT,) if processes.are_joined() else STOP_SIGNALS
        before = {number: signal.getsignal(number) for number in numbers}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def note(number: int, _: Any) -> None:
            self._signals.append(number)
            restore()
            # Not print: a handler may come in the middle of one.
            with LINE.hidden():
                os.write(1, b"stopping after this step; once more to stop without saving\n")
            if processes.are_joined():
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)

        for number in numbers:
            signal.signal(number, note)
        try:
            yield
        finally:
            restore()
