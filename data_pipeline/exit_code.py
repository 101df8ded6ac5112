"""How every entry of the pipeline ends: 0, or one line on stderr that says what is wrong."""

import sys
from collections.abc import Callable

REFUSED, INTERRUPTED = 2, 130


def exit_code_of(work: Callable[[], None]) -> int:
    """Do the work; 0, or the code that says why it was not done, after one line on stderr."""
    try:
        work()
    except KeyboardInterrupt:
        print("error: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error}", file=sys.stderr)
        return REFUSED
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    return 0
