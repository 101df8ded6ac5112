"""Print to the terminal: escaped texts, and lines that are broken between words.

Without a terminal a paragraph or a command is one line, for grep and for pasting.
"""

import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from data_pipeline.cli.live_line import escape

INDENT = "  "
_WIDEST = 100
_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\\.|[^\s'\"\\])+")  # a word of a shell's command


def make_console(**options: Any) -> Console:
    """Return a rich Console that escapes control characters in its texts."""
    console = Console(**options)
    if not console.width:  # COLUMNS=0, for which rich prints nothing
        console.width = shutil.get_terminal_size().columns
    console.push_render_hook(_EscapeTexts())
    return console


class _EscapeTexts(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(renderable) for renderable in renderables]


class _Escaped:
    """Escape the texts of a renderable after layout; rich's own control codes are kept."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._renderable, options):
            text, style, control = segment
            yield segment if control else Segment(escape(text), style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._renderable)


def wrap_text(text: str, columns: int, indent: str = "", hanging: str = "") -> list[str]:
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


def wrap_command(command: str, columns: int, indent: str = "") -> list[str]:
    """Break a shell command between arguments; a backslash ends each continued line."""
    lines, line = [], indent
    for word in _WORD.findall(command):
        if line.strip() and len(line) + 1 + len(word) + len(" \\") > columns:
            lines.append(f"{line} \\")
            line = indent + 2 * INDENT + word
        else:
            line += f" {word}" if line.strip() else word
    return [*lines, line]


def make_table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Text]], left: Collection[int] = (0,)
) -> Table:
    """Make a table, in which brackets are text and columns not in `left` (from 0) align right.

    A cell wider than its column continues on the next line, so that no digit is cut off.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for number, head in enumerate(heads):
        table.add_column(Text(head), justify="left" if number in left else "right", overflow="fold")
    for cells in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def print_paragraph(console: Console, text: str, style: str = "") -> None:
    """Print an indented paragraph; its later lines are indented once more."""
    lines = [INDENT + text]
    if console.is_terminal:
        lines = wrap_text(text, min(console.width, _WIDEST), INDENT, 2 * INDENT)
    for line in lines:
        console.print(Text(line, style), soft_wrap=True)


def print_command(console: Console, command: str) -> None:
    """Print an indented command."""
    lines = [INDENT + command]
    if console.is_terminal:
        lines = wrap_command(command, console.width, INDENT)
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def print_fact(console: Console, name: str, text: str, width: int) -> None:
    """Print a label and a text; continuation lines are aligned with the first."""
    start = f"{INDENT}{name:<{width}} "
    lines = [text]
    if console.is_terminal:
        lines = wrap_text(text, console.width - len(start))
    for i, line in enumerate(lines):
        label = start if i == 0 else " " * len(start)
        console.print(Text.assemble((label, "dim"), line), soft_wrap=True)
