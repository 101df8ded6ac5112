"""The health of a store on the screen: tables, examples, and last of all what looks wrong."""

from collections.abc import Iterator

import rich.box
import rich.console
import rich.markup
import rich.table
import rich.text
from rich.cells import cell_len

from data_pipeline import health_words
from data_pipeline.health import Health
from data_pipeline.lengths import Lengths
from data_pipeline.row_health import Example, Token
from data_pipeline.wrapping import print_paragraph

_BLOCKS = " ▁▂▃▄▅▆▇█"
_SHAPE_COLUMNS = 10
_WIDEST = 100
_INDENT = "  "
# How the tokens to predict look, by what became of them.
_STYLES = {"hidden": "cyan", "replaced": "magenta", "kept": "green"}
_SPECIALS = ("[CLS]", "[SEP]", "<cls>", "<sep>")


def print_health(console: rich.console.Console, health: Health, found: list[str]) -> None:
    """Print the whole report."""
    console.print(_counts_table(health))
    console.print(_lengths_table(health))
    for name, value in health_words.facts(health):
        _print_fact(console, name, value)
    pieces = health.pieces
    frequent = "  ".join(piece for piece, _ in pieces.most_frequent)
    _print_fact(console, "frequent", frequent)
    if pieces.never_used:
        never = "  ".join(pieces.examples_of_never)
        _print_fact(console, "never", f"{pieces.never_used:,} pieces:  {never}")
    for number, repeated in enumerate(health.copies.repeated):
        name = "" if number else "repeated"
        _print_fact(console, name, f"{repeated.count:,} times  {repeated.text}")
    if health.examples:
        _print_examples(console, health)
    console.print()
    for finding in found:
        print_paragraph(console, f"! {finding}", "yellow")
    if not found:
        console.print("  [green]nothing looks wrong[/]")


def _print_fact(console: rich.console.Console, name: str, value: str) -> None:
    line = rich.text.Text.assemble(_INDENT, (f"{name:<12}", "dim"), printable(value))
    console.print(line, no_wrap=True, overflow="ellipsis", crop=console.is_terminal)


def printable(text: str) -> str:
    """A text whose control characters, which a vocabulary may hold, cannot steer the terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _table(*columns: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _counts_table(health: Health) -> rich.table.Table:
    table = _table("train", "held out")
    for label, values in health_words.counts(health):
        table.add_row(_INDENT + label, *values)
    return table


def _lengths_table(health: Health) -> rich.table.Table:
    table = _table("shape", "5%", "median", "95%", "longest", "mean")
    for label, lengths in health_words.lengths(health):
        percents = (lengths.percentiles[percent] for percent in (5, 50, 95))
        values = [f"{one:,}" for one in (*percents, lengths.longest)]
        table.add_row(_INDENT + label, shape(lengths), *values, mean(lengths))
    return table


def mean(lengths: Lengths) -> str:
    """The mean to a tenth, where that is seen beside it."""
    return f"{lengths.mean:,.0f}" if lengths.mean >= 1000 else f"{lengths.mean:.1f}"


def shape(lengths: Lengths, columns: int = _SHAPE_COLUMNS) -> str:
    """A distribution as a row of blocks, from the shortest to the longest."""
    bars = lengths.bars()
    low, high = bars[0].left, bars[-1].right
    width = (high - low) / columns
    heights = []
    for column in range(columns):
        left = low + column * width
        within = (
            bar.height * max(0.0, min(bar.right, left + width) - max(bar.left, left))
            for bar in bars
        )
        heights.append(sum(within))
    # What occurs at all is seen, however rare.
    top = max(heights)
    levels = (max(round(8 * height / top), 1 if height else 0) for height in heights)
    return "".join(_BLOCKS[level] for level in levels)


def _print_examples(console: rich.console.Console, health: Health) -> None:
    key = rich.text.Text.assemble(_INDENT, (f"{'examples':<12}", "dim"), "answers underneath: ")
    for number, (fate, style) in enumerate(_STYLES.items()):
        key.append(", " if number else "").append(fate, style)
    console.print()
    console.print(key, soft_wrap=True)
    width = min(console.width, _WIDEST) - 2 * len(_INDENT)
    for number, example in enumerate(health.examples, 1):
        label = "the second part is random" if example.is_random else "the second part follows"
        head = f"{number}. {label}; {len(example.tokens)} of {health.seq_len} tokens"
        console.print(rich.text.Text.assemble("\n", _INDENT, (head, "dim")))
        for line in example_lines(example, width):
            console.print(rich.text.Text(2 * _INDENT) + line, soft_wrap=True)


def example_lines(example: Example, width: int) -> Iterator[rich.text.Text]:
    """The text of an example in lines; a line with tokens to predict has one more, the answers."""
    shown, answers = rich.text.Text(), rich.text.Text()
    for word in _words(example):
        columns = sum(_columns(token) for token in word)
        if shown and shown.cell_len + 1 + columns > width:
            yield from _lines(shown, answers)
            shown, answers = rich.text.Text(), rich.text.Text()
        gap = " " if shown else ""
        shown.append(gap)
        answers.append(gap)
        for token in word:
            text, answer = printable(token.text), printable(token.original or "")
            style = _STYLES.get(token.fate, "dim" if token.text in _SPECIALS else "")
            shown.append(_padded(text, _columns(token)), style)
            answers.append(_padded(answer, _columns(token)), style)
    yield from _lines(shown, answers)


def _words(example: Example) -> Iterator[list[Token]]:
    """The tokens of each word, whose pieces stand without a space between them."""
    word: list[Token] = []
    for token in example.tokens:
        if token.starts_word and word:
            yield word
            word = []
        word.append(token)
    yield word


def _columns(token: Token) -> int:
    return max(cell_len(printable(token.text)), cell_len(printable(token.original or "")))


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - cell_len(text))


def _lines(shown: rich.text.Text, answers: rich.text.Text) -> list[rich.text.Text]:
    shown.rstrip()
    answers.rstrip()
    return [shown, answers] if answers else [shown]
