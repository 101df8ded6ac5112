"""Lines broken for a terminal, and whole for a file."""

import io
import shlex
import subprocess

import pytest
import rich.console

from data_pipeline.wrapping import print_command, print_fact, print_paragraph, wrapped_command


def console_of(is_terminal):
    out = io.StringIO()
    return rich.console.Console(
        file=out, force_terminal=is_terminal, color_system=None, width=40
    ), out


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
    lines = wrapped_command(command, 30, "  ")
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
