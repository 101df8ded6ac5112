"""Stop a run on a signal or preemption notice: all processes end after the same step."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

from jax.experimental import multihost_utils

from bert_jax.parallel import processes
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.main import STOP_SIGNALS


class Interrupted(Exception):
    """Signal that the run was stopped on request and saved at this step."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by signal {signal_number} after step {step}")
        self.signal_number = signal_number
        self.step = step


class Stop:
    """Detect requests to stop: a signal or a preemption notice to any process.

    A single process handles all STOP_SIGNALS: a second SIGINT or SIGTERM has its default effect,
    other repeated signals are harmless (a closing terminal sends SIGHUP twice). SIGHUP, SIGUSR1 and
    SIGUSR2 stay ignored if the parent ignored them, as nohup does. With several processes, jax
    handles SIGTERM and notifies all processes, so the other signals are sent on as SIGTERM; a
    second SIGINT ends the process.
    """

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._is_asked_here = False
        self._polls = 0
        self._is_reached = False

    @property
    def signal_number(self) -> int:
        """Return the signal that this process received; SIGTERM if another process did."""
        return self._signals[0] if self._signals else signal.SIGTERM

    def is_asked(self) -> bool:
        """Return whether to stop now; the answer is the same on every process.

        Call this method at the same points on every process: the n-th calls of all processes belong
        together, and after a request all stop at the same n, the lowest that none has reached.
        """
        if not processes.are_joined():
            return bool(self._signals) or self._is_asked_here
        if not self._is_reached:
            self._polls += 1
            self._is_reached = multihost_utils.reached_preemption_sync_point(self._polls)
        return self._is_reached

    def ask(self) -> None:
        """Make all processes stop after a step; may be called from any thread of any process."""
        self._is_asked_here = True
        if processes.are_joined():
            os.kill(os.getpid(), signal.SIGTERM)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Install handlers that record stop signals while the context is active."""
        numbers = [number for number in STOP_SIGNALS if _is_handled_here(number)]
        before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

        def note(number: int, _: Any) -> None:
            self._signals.append(number)
            signal.signal(signal.SIGINT, before[signal.SIGINT])
            if number == signal.SIGTERM:
                signal.signal(number, before[number])
            if len(self._signals) > 1:
                return
            # Not print, as the signal may have interrupted a print. The terminal may be gone.
            with LINE.hidden(), contextlib.suppress(OSError):
                os.write(
                    1, b"stopping after this step; press Ctrl-C again to stop without saving\n"
                )
            if processes.are_joined():
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)

        for each in numbers:
            signal.signal(each, note)
        try:
            yield
        finally:
            for each in numbers:
                signal.signal(each, before[each])


def _is_handled_here(number: int) -> bool:
    if number == signal.SIGTERM:
        return not processes.are_joined()  # jax handles it if there are several
    return number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
