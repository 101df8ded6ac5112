"""Add the words that cost most tokens in a corpus to a checkpoint's vocab.txt.

A word costs tokens if the list cuts it into pieces. bert_jax.train --config.init initializes the
vectors of new words as the means of their pieces' vectors.
"""

import collections
import dataclasses
import itertools
import pathlib
import shlex
import sys
from collections.abc import Iterable, Sequence

import numpy as np
import rich.console
import rich.markup
import rich.table
import tokenizers

from data_pipeline.cli.flags import Command, flag, section
from data_pipeline.cli.main import find_python, run_main
from data_pipeline.cli.terminal import make_console, print_command, print_fact
from data_pipeline.io import Refused
from data_pipeline.io.atomic import check_new_file, new_file
from data_pipeline.read.documents import read_equal_shares
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import find_sources
from data_pipeline.report.progress import progress_bar
from data_pipeline.store import check_is_local
from data_pipeline.vocab import (
    BYTE_LEVEL,
    SENTENCEPIECE,
    TOKENIZER_JSON,
    WORDPIECE,
    Vocabulary,
    load_vocabulary,
    split_ids,
)
from data_pipeline.vocab.template import UNUSED, find_special_ids, make_bert_template
from data_pipeline.vocab.train import TEXT_CHARS
from data_pipeline.vocab.wordpiece import (
    MAX_WORD_CHARS,
    find_words,
    join_pieces,
    make_wordpiece_normalizer,
)

EXAMPLE = (
    "python -m data_pipeline.grow_vocab --vocab=CHECKPOINT/vocab.txt --input='corpus/*.txt' "
    "--output=grown.txt --words=1000"
)
_SHOWN_WORDS = 8
_WHY_NOT = {  # kinds that no word can be added to
    SENTENCEPIECE: "SentencePiece's: a word cannot be added to scores that were learned together",
    BYTE_LEVEL: "a byte-level BPE: a word is reached by merges alone, which were learned in order",
}
_NOT_WORDPIECE = "no WordPiece: a word cannot be added to pieces that were learned together"
_OWN_RULES = "whose rules (normalizer, splitter, ##, special and added tokens) no list keeps"
_TEXT_FLAGS = ("documents", "format", "text_key", "fallback_encoding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowFlags:
    """Declare the flags; `text` has some of TextOptions' flags."""

    vocab: str = flag(
        "", "the vocab.txt to grow; it stays as it is", metavar="FILE", is_required=True
    )
    input: str = flag(
        "", "text files, as build reads them", metavar="GLOB[,GLOB]", is_required=True
    )
    output: str = flag("", "the vocab.txt to write", metavar="FILE", is_required=True)
    words: int = flag(1000, "most words to add", minimum=1, maximum=1 << 20)
    min_count: int = flag(10, "add only words that occur this often", minimum=1, maximum=1 << 31)
    keep_unused: bool = flag(
        False,
        "keep the [unusedN] slots and add all words at the end, which makes the word table longer",
    )
    lowercase: bool = flag(True, "lowercase the text and strip accents")
    text: TextOptions = section("text", _TEXT_FLAGS)

    def __post_init__(self) -> None:
        self.text.check()
        for name in ("vocab", "output"):
            check_is_local(f"--{name}", getattr(self, name))


@dataclasses.dataclass(frozen=True)
class CutWord:
    """Describe a word that a vocabulary lacks and splits into pieces."""

    word: str  # BERT's normalized spelling: without accents and capitals where it lowercases
    count: int
    pieces: tuple[str, ...]  # the unknown piece alone where the word cannot be cut

    @property
    def saved(self) -> int:
        """Return how many tokens of the corpus are saved, or made known, if the word is a piece."""
        return self.count * max(len(self.pieces) - 1, 1)


COMMAND = Command("data_pipeline.grow_vocab", __doc__, GrowFlags, EXAMPLE)


def main(argv: Sequence[str] | None = None) -> int:
    """Grow the vocabulary that the flags name; return the exit code."""
    console = make_console(highlight=False)
    return run_main(COMMAND, lambda _, flags: grow(flags, console), argv)


def grow(flags: GrowFlags, console: rich.console.Console) -> None:
    """Write the grown list and print the changes, or raise and write nothing.

    Raises:
      Refused, OSError: a flag, the list or the text is wrong, there is no word to add, or the
        output exists.
    """
    output = pathlib.Path(flags.output)
    vocabulary = _load(flags, output)
    sources = find_sources(flags.input, flags.text)
    total_bytes = sum(source.stored_bytes for source in sources)
    with progress_bar(console, "counting words", total_bytes) as advance:
        documents = read_equal_shares(sources, flags.text, TEXT_CHARS[WORDPIECE], advance)
        counts = count_words(itertools.chain.from_iterable(documents), vocabulary.lowercase)
    cut = find_cut_words(counts, vocabulary, flags.min_count)
    if not cut:
        raise Refused(
            f"of the words of {flags.input} that occur {flags.min_count} times or more, "
            f"{flags.vocab} cuts none into pieces; give more text, a lower --min_count, or keep "
            "the list as it is"
        )
    added = cut[: flags.words]
    pieces = grow_list(
        vocabulary.pieces(), [cut_word.word for cut_word in added], not flags.keep_unused
    )
    with new_file(output) as unfinished:
        unfinished.write_bytes(join_pieces(pieces))
        after = load_vocabulary(unfinished, vocabulary.lowercase, checks_case=False)
        tokens = [count_tokens(counts, known) for known in (vocabulary, after)]
    _report(flags, console, vocabulary, pieces, added, tokens)


def _load(flags: GrowFlags, output: pathlib.Path) -> Vocabulary:
    """Return the vocabulary; raise Refused if it cannot grow, or the output cannot be written."""
    if output.suffix in (".model", ".json"):
        raise Refused(
            f"--output is {flags.output}, which names another kind of vocabulary; a list is "
            "written, as in --output=grown.txt"
        )
    check_new_file(output)
    vocabulary = load_vocabulary(flags.vocab, flags.lowercase)
    is_list = vocabulary.kind == WORDPIECE
    if not is_list or has_own_rules(vocabulary):
        why = _OWN_RULES if is_list else _WHY_NOT.get(vocabulary.kind, _NOT_WORDPIECE)
        raise Refused(
            f"--vocab is {flags.vocab}, {why}; use it as it is, or add tokens to its "
            "tokenizer.json by Tokenizer.add_tokens of tokenizers"
        )
    return vocabulary


def count_words(texts: Iterable[str], lowercase: bool) -> dict[str, int]:
    """Count words as BERT's tokenizer splits text, normalizing each spelling once."""
    normalizer = make_wordpiece_normalizer(lowercase)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    spellings: collections.Counter[str] = collections.Counter()
    for text in texts:
        spellings.update(find_words(text))
    counts: collections.Counter[str] = collections.Counter()
    for spelling, count in spellings.items():
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(spelling)):
            counts[word] += count
    return dict(counts)


def has_own_rules(vocabulary: Vocabulary) -> bool:
    """Return whether a WordPiece tokenizer.json has rules that a vocab.txt cannot record."""
    if vocabulary.file_name != TOKENIZER_JSON or vocabulary.kind != WORDPIECE:
        return False
    settings = vocabulary.read_settings()
    normalizer, splitter = (settings.get(n) or {} for n in ("normalizer", "pre_tokenizer"))
    return (
        (normalizer.get("type"), splitter.get("type")) != ("BertNormalizer", "BertPreTokenizer")
        or not (normalizer["clean_text"] and normalizer["handle_chinese_chars"])
        or normalizer["strip_accents"] not in (None, vocabulary.lowercase)
        or vocabulary.continuation_mark != "##"
        or not all(token["special"] for token in settings.get("added_tokens", ()))
        or find_special_ids(vocabulary.path, vocabulary.pieces(), {}) != vocabulary.special_ids
        or make_bert_template(vocabulary.special_ids) != vocabulary.template
    )


def find_cut_words(counts: dict[str, int], vocabulary: Vocabulary, min_count: int) -> list[CutWord]:
    """Return frequent words with a letter that are not pieces; those that save most tokens first.

    A word over MAX_WORD_CHARS would stay unknown, and is left out. Words that save the same number
    are in alphabetical order.
    """
    words = [
        word
        for word, count in counts.items()
        if count >= min_count and len(word) <= MAX_WORD_CHARS and any(map(str.isalpha, word))
    ]
    if not words:
        return []
    pieces, unk_id = vocabulary.pieces(), vocabulary.special_ids["unk"]
    cut = [
        CutWord(word, counts[word], tuple(pieces[i] for i in word_ids))
        for word, word_ids in zip(words, split_ids(*vocabulary.encode(words)), strict=True)
        if len(word_ids) > 1 or unk_id in word_ids
    ]
    return sorted(cut, key=lambda word: (-word.saved, word.word))


def count_tokens(counts: dict[str, int], vocabulary: Vocabulary) -> int:
    """Count the tokens of a text from the counts of its words."""
    _, lengths = vocabulary.encode(list(counts))
    return int(lengths @ np.fromiter(counts.values(), np.int64, len(counts)))


def grow_list(pieces: Sequence[str], words: Iterable[str], fills_unused: bool) -> list[str]:
    """Return the pieces with words put into the [unusedN] slots, in order, and then at the end.

    Every other piece keeps its id. Without `fills_unused` all words go to the end.
    """
    new = iter(words)
    filled = list(pieces)
    if fills_unused:
        slots = [i for i, piece in enumerate(pieces) if UNUSED.fullmatch(piece)]
        for slot, word in zip(slots, new, strict=False):
            filled[slot] = word
    return [*filled, *new]


def _report(
    flags: GrowFlags,
    console: rich.console.Console,
    vocabulary: Vocabulary,
    pieces: Sequence[str],
    added: Sequence[CutWord],
    tokens: Sequence[int],
) -> None:
    table = rich.table.Table("word", "times", "was cut into", box=None, header_style="dim")
    table.columns[1].justify = "right"
    for cut_word in added[:_SHOWN_WORDS]:
        cut_into = rich.markup.escape(" ".join(cut_word.pieces))
        table.add_row(rich.markup.escape(cut_word.word), f"{cut_word.count:,}", cut_into)
    console.print(table)
    appended = len(pieces) - vocabulary.size
    left = sum(UNUSED.fullmatch(piece) is not None for piece in pieces)
    before, after = tokens
    unknown = vocabulary.pieces()[vocabulary.special_ids["unk"]]
    rescued = sum(unknown in cut_word.pieces for cut_word in added)
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
    for name in _TEXT_FLAGS:
        if (value := getattr(flags.text, name)) != getattr(TextOptions, name):
            given.append(f"--{name}={value}")
    print_command(console, f"{find_python()} -m data_pipeline.build {shlex.join(given)}")


if __name__ == "__main__":
    sys.exit(main())
