"""Ctrl-C while an entry imports its libraries and gets ready: it ends the process, and no more.

Python's own handler would show a page of tracebacks then, or be swallowed by jax. Where SIGINT is
ignored, as in a shell's background job, or has another handler, it is left alone.
"""

import signal


def ends_the_process() -> None:
    """Until raises_again(), Ctrl-C ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raises_again() -> None:
    """Ctrl-C is a KeyboardInterrupt, as Python has it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
