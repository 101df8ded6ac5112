"""Show on the live line how far a piece of work is, and print how long it took."""

import contextlib
import time
from collections.abc import Callable, Iterator

import rich.console

from data_pipeline.cli.live_line import LINE, duration

_EVERY_SECS = 0.1  # the live line changes at most so often


@contextlib.contextmanager
def show_progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a label on the live line; the yielded function advances the work by an amount.

    With a total the line also has the share that is done, and the time left once it can be
    estimated.
    """
    started_secs = shown_secs = time.perf_counter()
    done = 0
    with LINE.doing(label) as show:

        def advance(amount: int) -> None:
            nonlocal done, shown_secs
            done += amount
            now = time.perf_counter()
            if total and done and now - shown_secs >= _EVERY_SECS:
                share, secs = min(done / total, 1.0), now - started_secs
                left = f", {duration(secs / share - secs)} left" if secs > 1 else ""
                show(f"{label}: {share:.0%}{left}")
                shown_secs = now

        yield advance


@contextlib.contextmanager
def progress_bar(
    console: rich.console.Console, label: str, total: int | None
) -> Iterator[Callable[[int], None]]:
    """Show progress, and print a line with the seconds once the work is done."""
    started_secs = time.perf_counter()
    with show_progress(label, total) as advance:
        yield advance
    seconds = time.perf_counter() - started_secs
    with LINE.hidden():
        console.print(f"{label}: {seconds:.1f} s", markup=False, soft_wrap=True)
