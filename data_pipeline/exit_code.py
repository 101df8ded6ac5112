"""How every entry of the pipeline ends: 0, or one line on stderr that says what is wrong."""

import errno
import re
import sys
from collections.abc import Callable

from data_pipeline import ctrl_c
from data_pipeline.live_line import LINE
from data_pipeline.terminal_text import escape

REFUSED, INTERRUPTED = 2, 130
_NUMPY_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # its words for a full disk


def in_words(error: OSError) -> str:
    """What an OSError says, without its number."""
    place = f"{error.filename}: " if error.filename else ""
    if error.errno == errno.ENOSPC or _NUMPY_SHORT_WRITE.fullmatch(str(error)):
        return f"{place}no space is left on the disk; make room, or give a folder on another one"
    return f"{place}{error.strerror or error}"


def on_stderr(line: str) -> None:
    """Print a line to stderr."""
    with LINE.hidden():
        print(escape(line), file=sys.stderr)


def exit_code_of(work: Callable[[], None], say: Callable[[str], None] = on_stderr) -> int:
    """Do the work; 0, or the code that says why it was not done, after one line to the screen."""
    ctrl_c.raises_again()
    LINE.show("")  # libraries are imported
    try:
        work()
    except KeyboardInterrupt:
        say("error: interrupted; nothing was written")
        return INTERRUPTED
    except OSError as error:
        say(f"error: {in_words(error)}")
        return REFUSED
    except ValueError as error:
        say(f"error: {error}")
        return REFUSED
    return 0
