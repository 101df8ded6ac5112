"""Text on a terminal: lines broken there and whole in a file; text from outside is not obeyed."""

import io
import shlex
import subprocess

import pytest
import rich.console
import rich.table
import rich.text

from data_pipeline.cli import main
from data_pipeline.cli.live_line import escape
from data_pipeline.cli.terminal import (
    make_console,
    make_table,
    print_command,
    print_fact,
    print_paragraph,
    wrap_command,
)
from data_pipeline.io import Refused
from tests.data_pipeline.cli.no_flags import COMMAND


def console_of(is_terminal):
    out = io.StringIO()
    return rich.console.Console(
        file=out, force_terminal=is_terminal, color_system=None, width=40
    ), out


def test_a_terminal_of_no_columns_has_the_usual_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    console = make_console(file=io.StringIO())
    console.print("a result")
    assert console.file.getvalue() == "a result\n"


@pytest.mark.parametrize(
    "command",
    [
        "python -m data_pipeline.build --input='a b/*.txt' --output=x",
        'sh -c "echo one two three four five six" and then more and more',
        r"python a\ file\ with\ spaces and --a=1 --b=2 --c=3 --d='it'\''s'",
        "one",
    ],
)
def test_a_broken_command_means_the_same_to_a_shell(command):
    lines = wrap_command(command, 30, "  ")
    assert all(line.startswith("  ") for line in lines)
    text = "printf '%s\\n' " + "\n".join(lines)
    shell = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert shell.stdout.splitlines() == shlex.split(command)


def test_lines_fit_a_terminal_and_stay_whole_in_a_file():
    text = "give --packed_examples=8 and some more words that do not fit"
    for print_it, indent in (
        (lambda console: print_paragraph(console, text), "    "),
        (lambda console: print_fact(console, "store", text, 11), " " * 14),
        (lambda console: print_command(console, f"python -m x {text}"), "      "),
    ):
        console, out = console_of(is_terminal=True)
        print_it(console)
        lines = out.getvalue().splitlines()
        assert len(lines) > 1 and all(len(line) <= 40 for line in lines)
        assert all(line.startswith(indent) for line in lines[1:])
        assert "--packed_examples=8" in out.getvalue()
        console, out = console_of(is_terminal=False)
        print_it(console)
        assert text in out.getvalue() and out.getvalue().count("\n") == 1


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_table_loses_no_digit_where_it_is_wider_than_the_screen(is_terminal, width):
    out = io.StringIO()
    console = rich.console.Console(
        file=out, force_terminal=is_terminal, color_system=None, width=width
    )
    digits = "123456789"
    cells = [digit * 11 for digit in digits[: width // 10]]
    console.print(make_table(("", *["head"] * len(cells)), [["label", *cells]]))
    assert all(out.getvalue().count(cell[0]) == 11 for cell in cells)
    assert "\u2026" not in out.getvalue()


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


def test_a_console_escapes_texts_and_keeps_its_own_colors():
    file = io.StringIO()
    console = make_console(
        file=file, force_terminal=True, color_system="standard", width=200, highlight=False
    )
    table = rich.table.Table("file")
    table.add_row(rich.text.Text(f"a{TITLE}.txt", "red"))
    console.print(table)
    console.print(rich.text.Text(TITLE, "bold"), TITLE, markup=False)
    printed = file.getvalue()
    assert "\x1b[31m" in printed  # ours
    assert TITLE not in printed
    assert printed.count(r"\x1b]0;owned") == 3  # rich itself takes the bell away


def test_the_label_of_a_fact_is_faint_and_its_text_is_not():
    file = io.StringIO()
    console = make_console(file=file, force_terminal=True, color_system="standard", width=80)
    print_fact(console, "store", "stores/mine", 11)
    assert file.getvalue() == "\x1b[2m  store       \x1b[0mstores/mine\n"


def test_an_error_is_escaped(capfd):
    def refuse(log, flags):
        raise Refused("a\udcff" + TITLE)

    assert main.run_main(COMMAND, refuse, []) == 2
    assert capfd.readouterr().err == f"error: {escape('a' + chr(0xDCFF) + TITLE)}\n"
