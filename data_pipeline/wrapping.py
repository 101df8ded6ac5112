"""Lines for a terminal: broken between words, and commands so that they can be pasted.

Without a terminal a paragraph or a command is one line, for grep and for pasting.
"""

import re
import textwrap

import rich.console
import rich.text

INDENT = "  "
_WIDEST = 100
_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\\.|[^\s'\"\\])+")  # of a command for a shell


def wrapped(text: str, columns: int, indent: str = "", hanging: str = "") -> list[str]:
    """Break a text between words; a word that is longer than a line stays whole."""
    lines = textwrap.wrap(
        text,
        max(columns, 20),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
        break_long_words=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return lines or [indent + text]


def wrapped_command(command: str, columns: int, indent: str = "") -> list[str]:
    """Break a command for a shell between its arguments, with a backslash where it goes on."""
    lines, line = [], indent
    for word in _WORD.findall(command):
        if line.strip() and len(line) + 1 + len(word) + len(" \\") > columns:
            lines.append(f"{line} \\")
            line = indent + 2 * INDENT + word
        else:
            line += f" {word}" if line.strip() else word
    return [*lines, line]


def print_paragraph(console: rich.console.Console, text: str, style: str = "") -> None:
    """Print an indented paragraph; its later lines are indented once more."""
    lines = [INDENT + text]
    if console.is_terminal:
        lines = wrapped(text, min(console.width, _WIDEST), INDENT, 2 * INDENT)
    for line in lines:
        console.print(rich.text.Text(line, style), soft_wrap=True)


def print_command(console: rich.console.Console, command: str) -> None:
    """Print an indented command."""
    lines = [INDENT + command]
    if console.is_terminal:
        lines = wrapped_command(command, console.width, INDENT)
    for line in lines:
        console.print(rich.text.Text(line), soft_wrap=True)


def print_fact(console: rich.console.Console, name: str, text: str, width: int) -> None:
    """Print a labelled text, whose later lines stand under its first."""
    start = f"{INDENT}{name:<{width}} "
    lines = [text]
    if console.is_terminal:
        lines = wrapped(text, console.width - len(start))
    for i, line in enumerate(lines):
        label = start if i == 0 else " " * len(start)
        console.print(rich.text.Text(label, "dim").append(line, "default"), soft_wrap=True)
