"""Show at the bottom of the terminal what a command is doing, with a clock.

A thread draws the line, which freezes while an import, or the tracing of a step, holds the
interpreter's lock. A command that is killed by a signal leaves the line on the screen.

No line is drawn if standard output is not a terminal, if TERM is "dumb", or while the command is in
the background (after Ctrl-Z or `&`). NO_COLOR turns colors off.
"""

import atexit
import contextlib
import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

_STDOUT = 1
_FRAMES, _PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_FRAME_SECS = 0.1
_OWN_CLOCK_SECS = 2.0  # longer work shows its own time next to the command's


def duration(secs: float) -> str:
    """Write seconds as 2:05, 3:02:05 or 4 d 03:02."""
    minutes, seconds = divmod(max(0, round(secs)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# Control characters except tab and newline, characters that change the writing direction or end a
# line, and surrogates, by which Python represents bytes of file names that are not UTF-8.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape(text: str) -> str:
    """Replace characters that a terminal would interpret, or cannot print, by their numbers."""
    return _UNSAFE.sub(_number, text)


def _number(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LiveLine:
    """Control the line of this process. Without a terminal every method does nothing."""

    def __init__(self) -> None:
        self._began_secs = time.monotonic()
        self._words, self._since_secs = "", 0.0
        self._printing = 0  # active hidden() contexts
        self._is_drawn = False
        self._lock = threading.RLock()  # guards the terminal and what is drawn there
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_on(self) -> bool:
        """Return whether there is a line."""
        return self._thread is not None

    def start(self, words: str = "") -> None:
        """Start drawing if standard output is a terminal; once in a process."""
        self._words = words or self._words
        can_redraw = os.isatty(_STDOUT) and os.environ.get("TERM", "") not in ("", "dumb")
        if self.is_on or not can_redraw:
            return
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)
        shows_error = sys.excepthook

        def show_error(*error: Any) -> None:
            self.close()
            shows_error(*error)

        sys.excepthook = show_error

    def show(self, words: str, since_secs: float = 0.0) -> None:
        """Show words, with a clock of their own since a monotonic time; "" clears the line."""
        self._words, self._since_secs = words, since_secs
        if not words:
            self._clear()

    @contextlib.contextmanager
    def doing(self, words: str) -> Iterator[Callable[[str], None]]:
        """Show words with a clock of their own during the block, then restore the earlier words.

        Yields a function that changes the words.
        """
        before = self._words, self._since_secs
        since_secs = time.monotonic()
        self.show(words, since_secs)
        try:
            yield lambda words: self.show(words, since_secs)
        finally:
            self.show(*before)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the line while something is printed."""
        with self._lock:
            self._printing += 1
            self._clear()
        try:
            yield
        finally:
            with self._lock:
                self._printing -= 1

    def close(self) -> None:
        """Clear the line for good."""
        self._ended.set()
        with self._lock:
            self._clear()
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._lock:
                if self.is_on and self._words and not self._printing:
                    self._draw()
            if self._ended.wait(_FRAME_SECS):
                return

    def _draw(self) -> None:
        self._is_drawn = _has_terminal()  # other output may be there now
        if not self._is_drawn:
            return
        now = time.monotonic()
        is_utf8 = "utf" in (sys.stdout.encoding or "").lower()
        frames = _FRAMES if is_utf8 else _PLAIN_FRAMES
        frame = frames[int(now / _FRAME_SECS) % len(frames)]
        clock = duration(int(now - self._began_secs))
        own_secs, own_clock = now - self._since_secs, ""
        if self._since_secs > self._began_secs + 1 and own_secs >= _OWN_CLOCK_SECS:
            own_clock = f" ({duration(int(own_secs))})"
        try:
            columns = os.get_terminal_size(_STDOUT).columns or 80
        except OSError:
            columns = 80
        # A character that is not printable could move the cursor.
        words = "".join(letter if letter.isprintable() else " " for letter in self._words)
        text = _cut(f"{frame} {clock}  {words}", columns - 1 - len(own_clock)) + own_clock
        if not os.environ.get("NO_COLOR"):
            text = f"\x1b[32m{text[:1]}\x1b[0m\x1b[2m{text[1:]}\x1b[0m"
        _write(f"\r{text}\x1b[K")

    def _clear(self) -> None:
        with self._lock:
            if self._is_drawn and _has_terminal():
                _write("\r\x1b[K")
            self._is_drawn = False

    def _forget(self) -> None:
        """Leave the line to the process that forked this one."""
        self._thread, self._is_drawn, self._lock = None, False, threading.RLock()


LINE = LiveLine()  # one per process, as a terminal has one last line


def _cut(text: str, columns: int) -> str:
    width = 0
    for i, letter in enumerate(text):
        width += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if width > columns:
            return text[:i]
    return text


def _has_terminal() -> bool:
    """Return whether this command is in the foreground of its terminal."""
    try:
        return os.tcgetpgrp(_STDOUT) == os.getpgrp()
    except OSError:  # another session's terminal: none of our jobs has it
        return True


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        os.write(_STDOUT, text.encode())
