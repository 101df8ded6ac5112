"""Show at the bottom of the terminal what a command is doing, with a clock.

A separate process draws the line: a thread would freeze whenever an import, or the tracing of a
step, holds the interpreter's lock (seven times in a run of 80 steps, for 0.4 to 1.2 seconds). It
reads messages from a pipe; when the pipe closes, it clears the line and exits, however the command
ended.

No line is drawn if standard output is not a terminal, if TERM is "dumb", or while the command is in
the background (after Ctrl-Z or `&`). NO_COLOR turns colours off.
"""

import atexit
import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from types import TracebackType

_STDOUT = 1
_FRAMES, _PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_FRAME_SECS = 0.1
_OWN_CLOCK_SECS = 2.0  # from here on a piece of work shows its own time beside the command's
_ANSWER_SECS = 1.0  # a drawing process that was stopped does not stop the command
_MOST_LETTERS = 500  # a message stays under 4,096 bytes, which a pipe takes whole or not at all
_CLEAR = "\r\x1b[K"
_SHOW, _HIDE = "show", "hide"


def duration(secs: float) -> str:
    """Write seconds as 2:05, 3:02:05 or 4 d 03:02."""
    minutes, seconds = divmod(max(0, round(secs)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# Control characters except tab and newline, characters that change the writing direction or end a
# line, and surrogates, by which Python represents bytes of file names that are not UTF-8.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape(text: str) -> str:
    """Replace characters that a terminal would interpret, or cannot print, by their numbers."""
    return _OBEYED.sub(_number, text)


def _number(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LiveLine:
    """Control the line of this process. Without a terminal every method does nothing."""

    def __init__(self) -> None:
        self._began_secs = time.monotonic()
        self._pid = 0  # of the drawing process, 0 without one
        self._commands, self._answers = -1, -1  # the ends of its pipes
        self._words, self._since_secs = "", 0.0
        self._printing = 0  # active hidden() contexts
        self._lock = threading.RLock()

    @property
    def is_on(self) -> bool:
        """Return whether there is a line."""
        return self._pid > 0

    def start(self, words: str = "") -> None:
        """Start drawing if standard output is a terminal; once in a process."""
        if not self._pid and _is_terminal():
            with contextlib.suppress(OSError):  # no process can start; run without the line
                self._start()
        if words:
            self.show(words)

    def _start(self) -> None:
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        colour = "" if os.environ.get("NO_COLOR") else "colour"
        frames = _FRAMES if "utf" in (sys.stdout.encoding or "").lower() else _PLAIN_FRAMES
        command = [sys.executable, "-I", "-S", __file__, repr(self._began_secs), frames, colour]
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                command,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, read_commands, 0),
                    (os.POSIX_SPAWN_DUP2, write_answers, 2),
                ],
            )
        finally:
            os.close(read_commands)
            os.close(write_answers)
        os.set_blocking(self._commands, False)
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)
        shows_error = sys.excepthook

        def show_error(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            self.close()
            shows_error(kind, error, traceback)

        sys.excepthook = show_error

    def show(self, words: str, since_secs: float = 0.0) -> None:
        """Show words, with a clock of their own since a monotonic time; "" clears the line."""
        with self._lock:
            self._words, self._since_secs = words, since_secs
            self._draw()

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
            if self._printing == 1:
                self._hide()
        try:
            yield
        finally:
            with self._lock:
                self._printing -= 1
                self._draw()

    def close(self) -> None:
        """Clear the line for good."""
        with self._lock:
            pid = self._pid
            self._forget()
            if pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _draw(self) -> None:
        if not self._pid or self._printing:
            return
        if self._words:
            words = _printable(self._words)[:_MOST_LETTERS]
            self._send(f"{_SHOW} {self._since_secs!r} {words}\n")
        else:
            self._hide()

    def _hide(self) -> None:
        """Clear the line, and wait until it is cleared."""
        if not self._pid:
            return
        while select.select([self._answers], [], [], 0)[0] and os.read(self._answers, 64):
            pass  # answers that came too late
        if self._send(f"{_HIDE}\n") and select.select([self._answers], [], [], _ANSWER_SECS)[0]:
            os.read(self._answers, 64)

    def _send(self, message: str) -> bool:
        try:
            os.write(self._commands, message.encode("utf-8", "replace"))
        except BlockingIOError:  # the process is stopped and the pipe is full
            return False
        except OSError:  # the process has exited
            self._forget()
            return False
        return True

    def _forget(self) -> None:
        """Close the pipes to the drawing process, which then ends."""
        for pipe in (self._commands, self._answers) if self._pid else ():
            os.close(pipe)
        self._pid, self._commands, self._answers = 0, -1, -1


LINE = LiveLine()  # one a process, as a terminal has one last line


def show_imports() -> None:
    """Start the line with "importing libraries", before a command imports them.

    Not in a run of several processes, which may share a terminal; its first process starts later.
    """
    if not any("multihost" in flag for flag in sys.argv):
        LINE.start("importing libraries")


def _is_terminal() -> bool:
    """Return whether a line on standard output can be redrawn."""
    has_terminal = hasattr(os, "posix_spawn") and bool(sys.executable) and os.isatty(_STDOUT)
    return has_terminal and os.environ.get("TERM", "") not in ("", "dumb")


def _printable(words: str) -> str:
    """Replace characters that would move the cursor by spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in words)


def _cut(text: str, columns: int) -> str:
    """Cut a text to so many columns."""
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
    except OSError:  # not this session's terminal: no other job of it has it
        return True


class _Drawing:
    """Draw the line, in its own process, until standard input closes."""

    def __init__(self, began_secs: float, frames: str, has_colour: bool) -> None:
        self._began_secs, self._frames, self._has_colour = began_secs, frames, has_colour
        self._words, self._since_secs = "", 0.0
        self._is_drawn = False

    def run(self) -> None:
        stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        for number in stops:  # main.STOP_SIGNALS, in a process that does not import it
            signal.signal(number, self._is_interrupted)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # asks a training for its stacks
        rest = b""
        while True:
            ready, _, _ = select.select([0], [], [], _FRAME_SECS if self._words else None)
            if ready:
                read = os.read(0, 1 << 16)
                if not read:
                    self._clear()
                    return
                *messages, rest = (rest + read).split(b"\n")
                for message in messages:
                    self._take(message.decode("utf-8", "replace"))
            if self._words:
                self._draw()

    def _is_interrupted(self, number: int, frame: object) -> None:
        """Clear the line on a signal: the command now exits or prints a message of its own."""
        self._words = ""
        self._clear()

    def _take(self, message: str) -> None:
        name, _, rest = message.partition(" ")
        if name == _SHOW:
            since, _, self._words = rest.partition(" ")
            self._since_secs = float(since)
        elif name == _HIDE:
            self._words = ""
            self._clear()
            os.write(2, b"k")

    def _draw(self) -> None:
        if not _has_terminal():
            self._is_drawn = False  # other output may be there now
            return
        now = time.monotonic()
        frame = self._frames[int(now / _FRAME_SECS) % len(self._frames)]
        clock = duration(int(now - self._began_secs))
        own_secs, own_clock = now - self._since_secs, ""
        if self._since_secs > self._began_secs + 1 and own_secs >= _OWN_CLOCK_SECS:
            own_clock = f" ({duration(int(own_secs))})"
        try:
            columns = os.get_terminal_size(_STDOUT).columns or 80
        except OSError:
            columns = 80
        text = _cut(f"{frame} {clock}  {self._words}", columns - 1 - len(own_clock)) + own_clock
        if self._has_colour:
            text = f"\x1b[32m{text[:1]}\x1b[0m\x1b[2m{text[1:]}\x1b[0m"
        self._is_drawn = True
        _write(f"\r{text}\x1b[K")

    def _clear(self) -> None:
        if self._is_drawn and _has_terminal():
            _write(_CLEAR)
        self._is_drawn = False


def _write(text: str) -> None:
    try:
        os.write(_STDOUT, text.encode())
    except OSError:  # the terminal is gone
        sys.exit(0)


if __name__ == "__main__":
    _Drawing(float(sys.argv[1]), sys.argv[2], bool(sys.argv[3])).run()
