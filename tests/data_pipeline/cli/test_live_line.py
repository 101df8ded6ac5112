"""The live line, watched on a terminal: it moves on, it leaves nothing behind."""

import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import time

import pytest

from data_pipeline.cli import live_line, main

COLUMNS = 40
LIBRARIES = "import os, sys, time\n"
PRELUDE = LIBRARIES + "from data_pipeline.cli.live_line import LINE\n"


class Terminal:
    """A program on a terminal of its own, and what it wrote there, by the time."""

    def __init__(self, program: str, **environment: str) -> None:
        self.began_secs = time.monotonic()
        self.pid, self._output = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm"} | environment
            os.execv(sys.executable, [sys.executable, "-c", program])
        size = struct.pack("HHHH", 24, COLUMNS, 0, 0)
        fcntl.ioctl(self._output, termios.TIOCSWINSZ, size)
        self.reads: list[tuple[float, str]] = []

    def read(self, until: str = "") -> bool:
        """Read until some text was seen, or to the end; whether it was seen."""
        while not until or until not in self.text:
            try:
                data = os.read(self._output, 1 << 16)
            except OSError:  # Linux's word for the end of a terminal
                return False
            if not data:
                return False
            self.reads.append((time.monotonic() - self.began_secs, data.decode()))
        return True

    def end(self) -> int:
        """Read the rest; the exit code."""
        self.read()
        os.close(self._output)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.reads)

    @property
    def screen(self) -> list[str]:
        """What stands there at the end: what a terminal makes of the characters."""
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", self.text):
            if part == "\n":
                lines, column = [*lines, ""], 0
            elif part == "\r":
                column = 0
            elif part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif not part.startswith("\x1b"):
                lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
                column += len(part)
                assert column < COLUMNS, part
        return lines


@pytest.mark.slow
def test_what_is_printed_stands_above_the_line_and_nothing_is_left_of_it():
    terminal = Terminal(
        PRELUDE + "LINE.start('importing')\n"
        "with LINE.doing('compiling ' + 99 * 'x') as show:\n"
        "    time.sleep(0.3)\n"
        "    for number in range(50):\n"
        "        with LINE.hidden():\n"
        "            print('line', number, flush=True)\n"
        "    show('still\\x1b[2J compiling')\n"
        "    time.sleep(0.3)\n"
        "time.sleep(0.2)\n"
    )
    assert terminal.end() == 0
    assert terminal.screen == [*(f"line {number}" for number in range(50)), ""]
    assert "still [2J compiling" in terminal.text  # nothing that words hold moves the cursor
    assert terminal.text.rindex("importing") > terminal.text.rindex("compiling")


def test_a_forked_process_leaves_the_line_alone():
    terminal = Terminal(
        PRELUDE + "LINE.start('importing')\ntime.sleep(0.3)\n"
        "if not os.fork():\n"
        "    with LINE.doing('unseen'), LINE.hidden():\n"
        "        os.write(1, b'on: %d' % LINE.is_on)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert terminal.end() == 0
    assert "on: 0" in terminal.text and "unseen" not in terminal.text


@pytest.mark.slow
@pytest.mark.parametrize("delay_secs", [0.0, 0.2, 0.8])
def test_ctrl_c_while_an_entry_imports_clears_the_line_and_shows_no_traceback(delay_secs):
    # Its imports take over a second anywhere.
    entry = "[sys.executable, '-m', 'bert_jax.evaluate', '--checkpoint=nowhere']"
    terminal = Terminal(f"{LIBRARIES}os.execv(sys.executable, {entry})")
    terminal.read("importing")
    time.sleep(delay_secs)
    os.kill(-terminal.pid, signal.SIGINT)
    code = terminal.end()
    assert code in (-signal.SIGINT, main.INTERRUPTED) and "Traceback" not in terminal.text
    assert code == main.INTERRUPTED or terminal.screen == [""]


@pytest.mark.slow
def test_ctrl_c_clears_the_line_and_what_is_done_then_is_shown():
    terminal = Terminal(
        PRELUDE + "LINE.start('training')\n"
        "try:\n"
        "    time.sleep(9)\n"
        "except KeyboardInterrupt:\n"
        "    with LINE.doing('saving'):\n"
        "        time.sleep(0.3)\n"
        "with LINE.hidden():\n"
        "    print('interrupted')\n"
    )
    terminal.read("training")
    time.sleep(0.1)
    os.kill(-terminal.pid, signal.SIGINT)  # to the whole group, as the terminal does
    assert terminal.end() == 0
    assert "saving" in terminal.text
    assert terminal.screen == ["interrupted", ""]


@pytest.mark.slow
def test_two_clocks_the_commands_and_after_a_while_that_of_the_work():
    terminal = Terminal(
        PRELUDE + "LINE._began_secs -= 60\nLINE.start('importing')\ntime.sleep(0.2)\n"
        "with LINE.doing('compiling ' + 99 * 'x'):\n    time.sleep(2.3)\n"
    )
    terminal.end()
    assert re.search(r"1:0\d  importing\x1b", terminal.text)
    assert re.search(r"1:0\d  compiling x+\x1b", terminal.text)
    assert re.search(r"1:0\d  compiling x+ \(0:02\)", terminal.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "is_on"),
    [({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, True)],
)
def test_a_terminal_that_cannot_go_back_gets_no_line_and_no_color_is_respected(environment, is_on):
    program = "LINE.start('importing')\ntime.sleep(0.3)\nwith LINE.hidden():\n    print(LINE.is_on)"
    terminal = Terminal(PRELUDE + program, **environment)
    terminal.end()
    assert terminal.screen[-2] == str(is_on)
    assert is_on == ("importing" in terminal.text)
    assert is_on or terminal.text == "False\r\n"
    assert not re.search(r"\x1b\[\d*m", terminal.text)


def test_without_a_terminal_there_is_no_thread_and_no_character(capfd):
    line = live_line.LiveLine()
    line.start("importing")
    with line.doing("compiling") as show, line.hidden():
        show("still compiling")
    line.close()
    assert not line.is_on
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["bert_jax", "data_pipeline"])
def test_an_entry_shows_the_line_before_it_imports_a_library(package):
    """As the package of a command is imported, which is before the command itself is."""
    terminal = Terminal(
        f"{LIBRARIES}sys.argv = ['-m']\nsys.orig_argv = ['python', '-m', '{package}.train']\n"
        f"import {package}\n"
        "heavy = {'numpy', 'jax', 'rich', 'absl', 'tensorflow'} & set(sys.modules)\n"
        "time.sleep(0.3)\n"
        "print(f'heavy: {heavy}')\n"
    )
    assert terminal.end() == 0
    assert "importing libraries" in terminal.text and "heavy: set()" in terminal.text
