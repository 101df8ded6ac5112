"""Text from outside on a terminal: shown, and not obeyed."""

import io
import os
import sys

import pytest
import rich.table
import rich.text

from data_pipeline import exit_code, inspect, terminal_console
from data_pipeline.library_log import LibraryLog
from data_pipeline.terminal_text import escape

TITLE = "\x1b]0;owned\x07"  # sets the title of a terminal's window


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (TITLE, r"\x1b]0;owned\x07"),
        ("\x1b[2J\x1b[31m", r"\x1b[2J\x1b[31m"),
        ("a\rb\x08\x7f\x00", r"a\x0db\x08\x7f\x00"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("\u202egpj.exe\u2066\u200f\u061c", r"\u202egpj.exe\u2066\u200f\u061c"),
        ("\u2028\u2029", r"\u2028\u2029"),
        (b"a\xff".decode("utf-8", "surrogateescape"), r"a\udcff"),
        ("é 漢 😀 שלום \t[MASK]\n\\x1b", "é 漢 😀 שלום \t[MASK]\n\\x1b"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_by_its_number(text, shown):
    assert escape(text) == shown
    shown.encode()


def test_a_console_escapes_texts_and_keeps_its_own_colours():
    file = io.StringIO()
    console = terminal_console.console(
        file=file, force_terminal=True, color_system="standard", width=200, highlight=False
    )
    table = rich.table.Table("file")
    table.add_row(rich.text.Text(f"a{TITLE}.txt", "red"))
    console.print(table)
    console.print(rich.text.Text(TITLE, "bold"), TITLE, markup=False)
    said = file.getvalue()
    assert "\x1b[31m" in said  # ours
    assert TITLE not in said
    assert said.count(r"\x1b]0;owned") == 3  # rich itself takes the bell away


def test_errors_of_both_packages_are_escaped(capfd):
    exit_code.on_stderr(f"error: {TITLE}")
    with LibraryLog() as log:
        log.say("error: a\udcff" + TITLE)
    sys.stderr.flush()
    said = capfd.readouterr().err
    assert said == f"error: {escape(TITLE)}\nerror: {escape('a' + chr(0xDCFF) + TITLE)}\n"


def test_a_file_name_in_an_error_of_a_command(tmp_path, capfd):
    folder = tmp_path / os.fsdecode(b"a\x1b[2J\xff")
    folder.mkdir()
    assert inspect.main([str(folder)]) == 2
    said = capfd.readouterr().err
    assert r"a\x1b[2J\udcff" in said
    assert "\x1b" not in said
