"""Put the health of a store into words, and print it: tables, facts, examples, then findings."""

from collections.abc import Iterator, Sequence

import rich.console
import rich.table
import rich.text
from rich.cells import cell_len

from data_pipeline.cli.terminal import INDENT, make_table, print_fact, print_paragraph
from data_pipeline.corpus.lost_characters import describe_lost_characters
from data_pipeline.report.build import list_changes
from data_pipeline.report.health import Health
from data_pipeline.report.lengths import Lengths
from data_pipeline.report.repeats import Repeats
from data_pipeline.report.rows import ShownExample, ShownToken
from data_pipeline.store import HELDOUT, TRAIN
from data_pipeline.vocab import describe_case

_BLOCKS = " ▁▂▃▄▅▆▇█"
_SHAPE_COLUMNS = 10
_WIDEST = 100
_LABEL_WIDTH = 11
# How a token to predict is printed, by its fate.
_STYLES = {"hidden": "cyan", "replaced": "magenta", "kept": "green"}


def list_counts(health: Health) -> list[tuple[str, list[str]]]:
    """List each count: its name, and its values in the training and the held-out split."""
    splits = [health.splits[name] for name in (TRAIN, HELDOUT)]
    rows = [
        ("documents", [f"{split.documents:,}" for split in splits]),
        ("sentences", [f"{split.sentences:,}" for split in splits]),
        ("tokens", [f"{split.tokens:,}" for split in splits]),
        ("unknown tokens", [f"{split.unknown_tokens / split.tokens:.2%}" for split in splits]),
    ]
    if health.rows:
        pair_counts = (health.rows.epoch_rows, health.rows.heldout_rows)
        rows.append((f"pairs of {health.seq_len} tokens", [f"{count:,}" for count in pair_counts]))
    copies = health.copies
    for name, repeats in (("documents", copies.documents), ("sentences", copies.sentences)):
        values = [_describe_repeats(repeats[split]) for split in (TRAIN, HELDOUT)]
        rows.append((f"copies among {name}", values))
    for name, leaked in (
        ("documents", copies.leaked_documents),
        ("sentences", copies.leaked_sentences),
    ):
        rows.append((f"{name} also in training", ["", _describe_repeats(leaked)]))
    return rows


def _describe_repeats(repeats: Repeats) -> str:
    """Describe copies as "5 (1.2%)", or as the share alone if only a sample was compared."""
    if repeats.looked_at < repeats.total:
        return f"{repeats.share:.1%} of {repeats.looked_at:,} sampled"
    return f"{repeats.copies:,} ({repeats.share:.1%})" if repeats.copies else "0"


def list_lengths(health: Health) -> list[tuple[str, Lengths]]:
    """List the distributions of the training split, each with its name."""
    train = health.splits[TRAIN]
    rows = [
        ("sentences per document", train.document_sentences),
        ("tokens per document", train.document_tokens),
        ("tokens per sentence", train.sentence_tokens),
    ]
    if health.rows:
        rows += [("tokens per row", health.rows.tokens), ("masks per row", health.rows.masks)]
    return rows


def list_health_facts(health: Health) -> list[tuple[str, str]]:
    """List everything that is neither a count nor a distribution, as a name and a line."""
    vocabulary, pieces = health.manifest["vocabulary"], health.pieces
    lines = [
        (
            "vocabulary",
            f"{vocabulary['kind']}, {pieces.size:,} pieces, {describe_case(vocabulary)}",
        ),
        (
            "",
            f"{pieces.used:,} pieces occur"
            + f"; {pieces.pieces_per_word:.2f} pieces per word" * (pieces.words > 0),
        ),
    ]
    if lost := describe_lost_characters(health.manifest):
        lines.append(("characters", lost))
    lines.append(("rows", _describe_sample(health)))
    if rows := health.rows:
        lines += [
            ("", f"{rows.random_share:.1%} of the next sentences are random (the target is 50%)"),
            (
                "",
                f"{rows.masks.mean:.1f} masks per row, {rows.padding_share:.1%} padding; "
                f"{rows.packed_padding_share:.1%} with {rows.packed_examples} examples packed",
            ),
        ]
    lines += list_changes(health.manifest)
    lines.append(("store", f"{health.store}  ({health.manifest['digest'][:12]})"))
    return lines


def _describe_sample(health: Health) -> str:
    rows = health.rows
    if rows is None:
        return "none: a split has one document, and a random next sentence comes from another"
    if rows.sampled == rows.epoch_rows:
        return f"all {rows.epoch_rows:,} of an epoch at {rows.seq_len} tokens"
    return (
        f"a sample: {rows.sampled:,} of the {rows.epoch_rows:,} of an epoch at "
        f"{rows.seq_len} tokens"
    )


def print_health(console: rich.console.Console, health: Health, findings: Sequence[str]) -> None:
    """Print the whole report; findings are its first and its last lines."""
    _print_findings(console, findings)
    counts = [(INDENT + label, *values) for label, values in list_counts(health)]
    console.print(make_table(("", "train", "held out"), counts))
    console.print(_lengths_table(health))
    for name, value in list_health_facts(health):
        print_fact(console, name, make_printable(value), _LABEL_WIDTH)
    pieces = health.pieces
    frequent = (piece for piece, count in pieces.most_frequent if count)
    samples = [("frequent", "  ".join(frequent))]
    if pieces.never_used:
        never = "  ".join(pieces.examples_of_never)
        samples.append(("never", f"{pieces.never_used:,} pieces:  {never}"))
    for number, repeated in enumerate(health.copies.repeated):
        name = "" if number else "repeated"
        samples.append((name, f"{repeated.count:,} times  {repeated.text}"))
    for name, value in samples:  # a line of a terminal holds a part of each
        label = f"{name:<{_LABEL_WIDTH}} "
        line = rich.text.Text.assemble(INDENT, (label, "dim"), make_printable(value))
        console.print(
            line,
            no_wrap=True,
            overflow="ellipsis" if console.is_terminal else "ignore",
            crop=console.is_terminal,
        )
    if health.examples:
        _print_examples(console, health)
    console.print()
    _print_findings(console, findings)


def _print_findings(console: rich.console.Console, findings: Sequence[str]) -> None:
    for finding in findings:
        print_paragraph(console, f"! {finding}", "yellow")
    if not findings:
        console.print("  [green]nothing looks wrong[/]")


def make_printable(text: str) -> str:
    """Replace control characters, which a terminal would interpret."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _lengths_table(health: Health) -> rich.table.Table:
    rows = []
    for label, lengths in list_lengths(health):
        percents = (lengths.percentiles[percent] for percent in (5, 50, 95))
        values = [f"{value:,}" for value in (*percents, lengths.longest)]
        mean = f"{lengths.mean:,.0f}" if lengths.mean >= 1000 else f"{lengths.mean:.1f}"
        rows.append([INDENT + label, draw_blocks(lengths), *values, mean])
    return make_table(("", "shape", "5%", "median", "95%", "longest", "mean"), rows)


def draw_blocks(lengths: Lengths, columns: int = _SHAPE_COLUMNS) -> str:
    """Draw a distribution as a row of blocks, from the shortest length to the longest."""
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
    # A length that occurs at all is visible, however rare.
    top = max(heights)
    levels = (max(round(8 * height / top), 1 if height else 0) for height in heights)
    return "".join(_BLOCKS[level] for level in levels)


def _print_examples(console: rich.console.Console, health: Health) -> None:
    key = rich.text.Text.assemble(INDENT, (f"{'examples':<12}", "dim"), "answers underneath: ")
    for number, (fate, style) in enumerate(_STYLES.items()):
        key.append(", " if number else "").append(fate, style)
    console.print()
    console.print(key, soft_wrap=True)
    width = min(console.width, _WIDEST) - 2 * len(INDENT)
    for number, example in enumerate(health.examples, 1):
        label = "the second part is random" if example.is_random else "the second part follows"
        head = f"{number}. {label}; {len(example.tokens)} of {health.seq_len} tokens"
        console.print(rich.text.Text.assemble("\n", INDENT, (head, "dim")))
        for line in lay_out_example(example, width):
            console.print(rich.text.Text(2 * INDENT) + line, soft_wrap=True)


def lay_out_example(example: ShownExample, width: int) -> Iterator[rich.text.Text]:
    """Yield an example in lines; a line with masked tokens is followed by one with the answers."""
    text, answers = rich.text.Text(), rich.text.Text()
    for word in _split_words(example):
        columns = sum(_columns(token) for token in word)
        if text and text.cell_len + 1 + columns > width:
            yield from _rstrip(text, answers)
            text, answers = rich.text.Text(), rich.text.Text()
        gap = " " if text else ""
        text.append(gap)
        answers.append(gap)
        for token in word:
            style = _STYLES.get(token.fate, "dim" if token.is_special else "")
            for line, content in ((text, token.text), (answers, token.original or "")):
                content = make_printable(content)
                line.append(content + " " * (_columns(token) - cell_len(content)), style)
    yield from _rstrip(text, answers)


def _split_words(example: ShownExample) -> Iterator[list[ShownToken]]:
    """Group the tokens by word; tokens of a word are printed without spaces."""
    word: list[ShownToken] = []
    for token in example.tokens:
        if token.starts_word and word:
            yield word
            word = []
        word.append(token)
    yield word


def _columns(token: ShownToken) -> int:
    return max(cell_len(make_printable(text)) for text in (token.text, token.original or ""))


def _rstrip(text: rich.text.Text, answers: rich.text.Text) -> list[rich.text.Text]:
    text.rstrip()
    answers.rstrip()
    return [text, answers] if answers else [text]
