"""Read files of words and their entity tags (CoNLL columns; IOB1, IOB2 or BIOES) as IOB2 sentences.

A line is a word, then columns, the last one its tag, separated by tabs, or by spaces where
the file has no tab. A blank line ends a sentence, and -DOCSTART- is not a word. A file with one
column has words without tags.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence

from bert_jax.tasks.files import decode_lines
from bert_jax.tasks.ner.conlleval import (
    OUTSIDE,
    Entity,
    begins_entity,
    find_entities,
    split_tag,
    to_iob2,
)
from data_pipeline.io import Refused

_DOCUMENT = "-DOCSTART-"
_TAG = re.compile("O|[BIESLU]-.+")
# A number before a word, as in CoNLL-U (1, 3-4, 5.1), WebAnno (1-1), a list (1. or (1)), or at the
# end of a name (w1, s1_w3, Sentence:1).
_NUMBER = re.compile(r"(?:\S{0,30}?[^0-9\s])?([0-9]{1,9})[-.:)\]]?")
_CHECKED_LINES = 10_000
_PIECE, _PIECES_SHARE = re.compile(r"##\w+"), 0.02  # a larger share of words is no coincidence
_ENDS_ENTITIES = {"E", "S", "L", "U"}  # letters of BIOES, and of BILOU, its other spelling


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Hold the words of a sentence, one on each line of a file."""

    first_line: int  # its number in the file, from 1
    words: tuple[str, ...]
    tags: tuple[str, ...]  # IOB2; none where the file has no tags


@dataclasses.dataclass(frozen=True)
class TaggedFile:
    """Hold a file's sentences."""

    path: pathlib.Path
    sentences: tuple[Sentence, ...]
    note: str  # a line for the screen: counts, and the scheme of its tags

    @property
    def has_tags(self) -> bool:
        """Return whether the words have tags."""
        return bool(self.sentences[0].tags)

    @property
    def words(self) -> int:
        """Count the words of all sentences."""
        return sum(len(sentence.words) for sentence in self.sentences)

    def list_types(self) -> Iterator[tuple[str, str]]:
        """Yield the type of every tag but O, with its file and row."""
        for sentence in self.sentences:
            for number, tag in enumerate(sentence.tags, sentence.first_line):
                if tag != OUTSIDE:
                    yield split_tag(tag)[1], f"{self.path} row {number}"


def read(path: pathlib.Path) -> TaggedFile:
    """Read a file and convert its tags to IOB2."""
    refuse_other_words(path)
    rows = list(read_columns(path))
    columns = {len(row) for _, row in rows if row}
    if not columns:
        raise Refused(
            f"{path} has no words; it must have one on each line, with its tag in the last column"
        )
    has_tags = columns != {1}
    sentences = []
    for is_sentence, group in itertools.groupby(rows, lambda row: bool(row[1])):
        if is_sentence:
            numbers, columns_of_words = zip(*group, strict=True)
            words = tuple(each[0] for each in columns_of_words)
            tags = tuple(each[-1].strip() for each in columns_of_words if has_tags)
            sentences.append(Sentence(numbers[0], words, tags))
    if not has_tags:
        return TaggedFile(path, tuple(sentences), f"{len(sentences):,} sentences, no tags")
    scheme = _check_tags(path, sentences)
    entities = 0
    for index, sentence in enumerate(sentences):
        is_bioes = scheme == "BIOES"
        spans = _find_bioes_entities(path, sentence) if is_bioes else find_entities(sentence.tags)
        tags = to_iob2(spans, len(sentence.words))
        sentences[index] = dataclasses.replace(sentence, tags=tags)
        entities += len(spans)
    count = sum(len(sentence.words) for sentence in sentences)
    note = f"{len(sentences):,} sentences, {count:,} words, {entities:,} entities, {scheme}"
    return TaggedFile(path, tuple(sentences), note)


def refuse_other_words(path: pathlib.Path) -> None:
    """Refuse a file with a number before each word, or with pieces of words, by its first lines.

    Numbers are recognized if most lines of a sentence have the number of the line before or the
    next one; with three columns or more, any larger one, such as a character offset. Pieces are
    WordPiece's.
    """
    followers = counted = words = 0
    before: int | None = None  # -1: the line before begins with no number
    numbered, pieces = list[tuple[int, str]](), list[tuple[int, str]]()
    for number, line in itertools.islice(decode_lines(path), _CHECKED_LINES):
        columns = line.split()
        if not columns or columns[0] == _DOCUMENT:
            before = None
            continue
        words += 1
        if _PIECE.fullmatch(columns[0]):
            pieces.append((number, line.rstrip()))
        elif not columns[0].startswith("#"):  # a comment, or a word of a message
            match = _NUMBER.fullmatch(columns[0]) if len(columns) > 1 else None
            count = int(match[1]) if match else -1
            if before is not None:
                counted += 1
                is_near = count - before <= 1 or len(columns) > 2
                followers += 0 <= before <= count and is_near
            if match:
                numbered.append((number, line.rstrip()))
            before = count
    if len(pieces) > _PIECES_SHARE * words:
        number, line = pieces[0]
        raise Refused(
            f"{path} has pieces of words, {len(pieces):,} on its first {words:,} lines with one, "
            f"such as {line!r:.60} in row {number}; give whole words, with the tag of the first "
            "piece where there are tags"
        )
    if 2 * followers > counted:
        number, line = numbered[0]
        cut = "cut -f2- FILE" if "\t" in line else "sed 's/^ *[^ ]* *//' FILE"
        raise Refused(
            f"{path} has a running number before each word: row {number} is {line!r:.60}; a line "
            "is a word, then columns, the last of which is its tag, and an empty line ends a "
            f"sentence: cut the numbers ({cut}), and remove lines of CoNLL-U that are comments (#) "
            "or stand for several words (3-4)"
        )


def read_columns(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's number and columns; none for a line that ends a sentence."""
    has_tabs = any("\t" in line for _, line in decode_lines(path) if line.strip())
    expected = since = 0
    for number, line in decode_lines(path):
        line = line.rstrip("\r\n")
        if "\r" in line:
            raise Refused(
                f"{path} row {number} has carriage returns within it, {line!r:.60}; write the "
                "file with line feeds (tr '\\r' '\\n' < FILE)"
            )
        if line.split(maxsplit=1)[:1] in ([], [_DOCUMENT]):  # its columns may have spaces alone
            yield number, []
            continue
        # Not str.split(): some words are other white space.
        row = line.split("\t") if has_tabs else [column for column in line.split(" ") if column]
        expected, since = expected or len(row), since or number
        if len(row) != expected or not row[0]:
            wrong = "no word in its first column" if not row[0] else f"{len(row)} columns"
            raise Refused(
                f"{path} row {number} has {wrong}, where row {since} has {expected} columns "
                f"separated by {'tabs' if has_tabs else 'spaces'}; a line is a word and its tag, "
                "and an empty line ends a sentence"
            )
        yield number, row


def _check_tags(path: pathlib.Path, sentences: Sequence[Sentence]) -> str:
    """Refuse malformed tags; return the name of the scheme that the file follows.

    IOB2 begins every entity with B-, IOB1 only one that follows another of its type. A file that
    mixes both is read by conlleval's rule, under which either scheme has the intended entities.
    """
    first_by: dict[str, int] = {}  # line of the first entity that begins with B- after O, or I-
    counts = {"B": 0, "I": 0}
    has_ends = False
    for sentence in sentences:
        before = OUTSIDE
        for number, tag in enumerate(sentence.tags, sentence.first_line):
            if not _TAG.fullmatch(tag):
                raise Refused(
                    f"{path} row {number} has the tag {tag!r:.60}; a tag is O, or B- or I- and a "
                    "type, as B-PER: of IOB1, IOB2 or BIOES, in the last column"
                )
            letter = split_tag(tag)[0]
            has_ends |= letter in _ENDS_ENTITIES
            if begins_entity(before, tag) and (letter == "I" or before == OUTSIDE):
                counts[letter] += 1
                first_by.setdefault(letter, number)
            before = tag
    if has_ends:
        return "BIOES"
    if not counts["I"]:
        return "IOB2"
    if not counts["B"]:
        return "IOB1"
    rarer = min(counts, key=lambda letter: counts[letter])
    return (
        f"mixed IOB1 and IOB2: {counts['B']:,} entities begin with B- after O, {counts['I']:,} "
        f"with I-; the first with {rarer}- is row {first_by[rarer]}; each is read as conlleval "
        "reads it, as the beginning of an entity"
    )


def _find_bioes_entities(path: pathlib.Path, sentence: Sentence) -> list[Entity]:
    """Return the entities of tags B- I- E- and S-, or B- I- L- and U-."""
    entities: list[Entity] = []
    start, open_type = 0, ""  # the entity that has not ended
    for place, tag in enumerate((*sentence.tags, OUTSIDE)):
        letter, kind = split_tag(tag)
        continues, ends = letter in "IEL", letter in "ELSU"
        if (continues and kind != open_type) or (not continues and open_type):
            before = sentence.tags[place - 1] if place else "a sentence's beginning"
            is_past_end = place == len(sentence.tags)
            wrong = (
                f"{before} cannot end a sentence"
                if is_past_end
                else f"{tag} cannot follow {before}"
            )
            raise Refused(
                f"{path} row {sentence.first_line + place - is_past_end}: {wrong}, because the "
                "file has tags that end entities (E-, S-, L-, U-), it is read as BIOES; correct "
                "the row, or give the file in one scheme"
            )
        start = start if continues else place
        if ends:
            entities.append(Entity(kind, start, place + 1))
        open_type = "" if ends else kind
    return entities
