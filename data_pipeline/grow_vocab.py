"""Words of a field added to a vocabulary: python -m data_pipeline.grow_vocab --help."""

import argparse
import pathlib
import shlex
import sys
from collections.abc import Sequence

import rich.console
import rich.markup
import rich.table

from data_pipeline import terminal_console, vocab_growth
from data_pipeline.build_report import progress_bar
from data_pipeline.exit_code import exit_code_of
from data_pipeline.flag_parser import FlagParser, boolean, check_range
from data_pipeline.interpreter import python
from data_pipeline.sources import Source, find_sources
from data_pipeline.store import check_is_local
from data_pipeline.text import read_documents
from data_pipeline.text_options import DOCUMENT_RULES, TextOptions
from data_pipeline.vocab import SENTENCEPIECE, WORDPIECE, Vocabulary, load_vocabulary
from data_pipeline.vocab_files import list_bytes
from data_pipeline.vocab_growth import UNUSED, CutWord, WordCounter
from data_pipeline.vocab_training import TEXT_CHARS
from data_pipeline.whole_file import check_new, whole_file
from data_pipeline.wrapping import print_command, print_fact

EXAMPLE = (
    "python -m data_pipeline.grow_vocab --vocab=CHECKPOINT/vocab.txt --input='corpus/*.txt' "
    "--output=grown.txt --words=1000"
)
_SHOWN_WORDS = 8
_MOST_WORDS = 1 << 20
_MOST_COUNT = 1 << 31


def main(argv: list[str] | None = None) -> int:
    """Grow a list; 0, or 2 after one line on stderr that says what is wrong."""
    console = terminal_console.console(highlight=False)
    return exit_code_of(lambda: grow(_parser().parse_args(argv), console))


def grow(flags: argparse.Namespace, console: rich.console.Console) -> None:
    """Write the grown list and say what it changes, or raise and write nothing.

    Raises:
      ValueError, OSError: a flag, the list, the text, no word to add, a file that is there.
    """
    options = TextOptions(documents=flags.documents, text_key=flags.text_key)
    vocabulary = _checked(flags, options)
    sources = find_sources(flags.input, options)
    counts = _counts(sources, options, vocabulary.lowercase, console)
    cut = vocab_growth.cut_words(counts, vocabulary, flags.min_count)
    if not cut:
        raise ValueError(
            f"of the words of {flags.input} that occur {flags.min_count} times or more, "
            f"{flags.vocab} cuts none into pieces; give more text, a lower --min_count, or keep "
            "the list as it is"
        )
    added = cut[: flags.words]
    pieces = vocab_growth.grown(
        vocabulary.pieces(), [one.word for one in added], not flags.keep_unused
    )
    output = pathlib.Path(flags.output)
    with whole_file(output) as unfinished:
        unfinished.write_bytes(list_bytes(pieces))
        after = load_vocabulary(unfinished, vocabulary.lowercase, checks_case=False)
        tokens = [vocab_growth.tokens(counts, one) for one in (vocabulary, after)]
    _report(flags, console, vocabulary, pieces, added, tokens)


def _checked(flags: argparse.Namespace, options: TextOptions) -> Vocabulary:
    """The vocabulary, once the flags are known to be right."""
    for name in ("vocab", "input", "output"):
        if not getattr(flags, name):
            raise ValueError(f"--{name} is missing; a whole command is: {EXAMPLE}")
        if name != "input":
            check_is_local(f"--{name}", getattr(flags, name))
    check_range("words", flags.words, 1, _MOST_WORDS)
    check_range("min_count", flags.min_count, 1, _MOST_COUNT)
    options.check()
    output = pathlib.Path(flags.output)
    if output.suffix in (".model", ".json"):
        raise ValueError(
            f"--output is {flags.output}, which names another kind of vocabulary; what is written "
            "is a list, as in --output=grown.txt"
        )
    check_new(output, "--output")
    vocabulary = load_vocabulary(flags.vocab, flags.lowercase)
    if vocabulary.kind == SENTENCEPIECE:
        raise ValueError(
            f"--vocab is {flags.vocab}, a SentencePiece model: its pieces carry scores that were "
            "learned together, and a word cannot be added to them; go on with it as it is, or "
            "begin from a checkpoint with a vocab.txt"
        )
    return vocabulary


def _counts(
    sources: Sequence[Source],
    options: TextOptions,
    lowercase: bool,
    console: rich.console.Console,
) -> dict[str, int]:
    """How often each word occurs in an equal share from each source's start."""
    counter = WordCounter(lowercase)
    share = TEXT_CHARS[WORDPIECE] // len(sources)
    total_bytes = sum(source.stored_bytes for source in sources)
    with progress_bar(console, "counting words", total_bytes) as advance:
        for source in sources:
            left = share
            for document in read_documents(source, options, advance):
                for paragraph in document:
                    counter.add(paragraph)
                    left -= len(paragraph)
                if left <= 0:
                    break
        return counter.counts()


def _report(
    flags: argparse.Namespace,
    console: rich.console.Console,
    vocabulary: Vocabulary,
    pieces: Sequence[str],
    added: Sequence[CutWord],
    tokens: Sequence[int],
) -> None:
    """The best of the words, what became of the list and of the text, and what comes next."""
    table = rich.table.Table("word", "times", "was cut into", box=None, header_style="dim")
    table.columns[1].justify = "right"
    for one in added[:_SHOWN_WORDS]:
        cut_into = rich.markup.escape(" ".join(one.pieces))
        table.add_row(rich.markup.escape(one.word), f"{one.count:,}", cut_into)
    console.print(table)
    appended = len(pieces) - vocabulary.size
    left = sum(UNUSED.fullmatch(piece) is not None for piece in pieces)
    before, after = tokens
    unknown = vocabulary.pieces()[vocabulary.special_ids["unk"]]
    rescued = sum(unknown in one.pieces for one in added)
    facts = [
        (
            "words",
            f"{len(added):,} added: {len(added) - appended:,} in slots [unusedN], of which "
            f"{left:,} are left, and {appended:,} at the end",
        ),
        ("pieces", f"{vocabulary.size:,} -> {len(pieces):,}; the others keep their ids"),
        ("text", f"{before:,} tokens -> {after:,} ({after / before - 1:+.1%})"),
    ]
    if len(added) < flags.words:
        facts.append(("", f"no more words occur {flags.min_count} times and are cut"))
    if rescued:
        facts.append(("", f"{rescued:,} of the words were {unknown} before"))
    facts.append(("list", flags.output))
    for name, text in facts:
        print_fact(console, name, text, 8)
    console.print("\n  [dim]next[/]")
    given = [f"--vocab={flags.output}", f"--input={flags.input}", "--output=STORE"]
    given += [] if vocabulary.lowercase else ["--lowercase=false"]
    given += [f"--{name}={value}" for name, value in _text_flags(flags) if value]
    command = f"{python()} -m data_pipeline.build {shlex.join(given)}"
    print_command(console, command)


def _text_flags(flags: argparse.Namespace) -> list[tuple[str, str]]:
    """What was said of the text, empty where it is the default."""
    return [
        (name, "" if getattr(flags, name) == getattr(TextOptions, name) else getattr(flags, name))
        for name in ("documents", "text_key")
    ]


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="python -m data_pipeline.grow_vocab",
        description="Adds to a checkpoint's vocab.txt the words of a corpus whose cutting into "
        "pieces costs most tokens. bert_jax.train --config.init begins their rows at the mean of "
        "those pieces' rows.",
        epilog=f"example: {EXAMPLE}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--vocab", default="", metavar="FILE", help="the vocab.txt to grow; it stays as it is")
    add("--input", default="", metavar="GLOB[,GLOB]", help="text, as the build reads it")
    add("--output", default="", metavar="FILE", help="the list to write")
    add("--words", default=1000, type=int, metavar="N", help="most words to add; default 1000")
    add(
        "--min_count",
        default=10,
        type=int,
        metavar="N",
        help="add only words that occur this often; default 10",
    )
    add(
        "--keep_unused",
        default=False,
        type=boolean,
        metavar="BOOL",
        help="leave the list's [unusedN] slots alone and add all words at the end, which makes the "
        "word table longer; default false",
    )
    add(
        "--lowercase",
        default=True,
        type=boolean,
        metavar="BOOL",
        help="lowercase the text and strip accents; default true",
    )
    add(
        "--documents",
        default="blank_line",
        metavar="RULE",
        help="what a document is in plain text: " + " | ".join(DOCUMENT_RULES),
    )
    add(
        "--text_key",
        default="text",
        metavar="KEY",
        help="key or column that holds the text in JSON, Parquet or TFDS",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
