"""Files of words and their entity tags: CoNLL's columns, IOB1, IOB2 or BIOES -> IOB2 sentences.

A line is a word, then columns, the last of which is its tag; tabs part them, or spaces where the
file has no tab. A line without anything to see ends a sentence, and -DOCSTART- is no word. A file
of one column has words alone.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Sequence

from bert_jax.tasks.entity_score import OUTSIDE, Entity, begins, entities, iob2, parts
from bert_jax.tasks.tsv import decoded_lines

_DOCUMENT = "-DOCSTART-"
_TAG = re.compile("O|[BIESLU]-.+")
_ENDS_ENTITIES = {"E", "S", "L", "U"}  # letters that BIOES has, or BILOU, its other spelling


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words of a file that follow each other, one a line."""

    first_line: int  # in the file, from 1
    words: tuple[str, ...]
    tags: tuple[str, ...]  # of IOB2; none where the file has no tags


@dataclasses.dataclass(frozen=True)
class TaggedFile:
    """A file's sentences, and what was found in it."""

    path: pathlib.Path
    sentences: tuple[Sentence, ...]
    has_tags: bool
    note: str  # how many, and the scheme of its tags

    @property
    def words(self) -> int:
        """Words of all sentences."""
        return sum(len(sentence.words) for sentence in self.sentences)

    def tags_by_line(self) -> Iterator[tuple[int, str]]:
        """Every tag with the line it stands in."""
        for sentence in self.sentences:
            yield from enumerate(sentence.tags, sentence.first_line)


def read(path: pathlib.Path) -> TaggedFile:
    """Read a file; tags of every scheme become those of IOB2.

    Raises:
      ValueError: no words, lines of unequal columns, what is no tag, tags that no scheme allows;
        the row is named.
    """
    rows = list(rows_of(path))
    columns = {len(row) for _, row in rows if row}
    if not columns:
        raise ValueError(
            f"{path} has no words; it must have one a line, its tag in the last column"
        )
    has_tags = columns != {1}
    sentences = _sentences(rows, has_tags)
    if not has_tags:
        return TaggedFile(path, tuple(sentences), False, f"{len(sentences):,} sentences, no tags")
    scheme = _check_tags(path, sentences)
    converted = tuple(
        dataclasses.replace(one, tags=iob2(_entities(path, scheme, one), len(one.words)))
        for one in sentences
    )
    found = sum(len(entities(one.tags)) for one in converted)
    words = sum(len(one.words) for one in converted)
    note = f"{len(converted):,} sentences, {words:,} words, {found:,} entities, {scheme}"
    return TaggedFile(path, converted, True, note)


def rows_of(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's number and columns; a line that ends a sentence has none."""
    has_tabs = any("\t" in line for _, line in decoded_lines(path) if line.strip())
    expected, since = 0, 0
    for number, line in decoded_lines(path):
        line = line.rstrip("\r\n")
        if not line.strip():
            yield number, []
            continue
        # Not str.split(): some words are spaces of other kinds.
        row = line.split("\t") if has_tabs else line.strip(" ").split(" ")
        row = row if has_tabs else [column for column in row if column]
        if row[0] == _DOCUMENT:
            yield number, []
            continue
        expected, since = expected or len(row), since or number
        if len(row) != expected or not row[0]:
            wrong = "no word in its first column" if not row[0] else f"{len(row)} columns"
            raise ValueError(
                f"{path} row {number} has {wrong}, where row {since} has {expected} columns "
                f"parted by {'tabs' if has_tabs else 'spaces'}; a line is a word and its tag, and "
                "an empty line ends a sentence"
            )
        yield number, row


def _sentences(rows: Sequence[tuple[int, list[str]]], has_tags: bool) -> list[Sentence]:
    found: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    for number, row in [*rows, (len(rows) + 1, [])]:
        if row:
            words.append(row[0])
            tags += [row[-1].strip()] * has_tags
        elif words:
            found.append(Sentence(number - len(words), tuple(words), tuple(tags)))
            words, tags = [], []
    return found


def _check_tags(path: pathlib.Path, sentences: Sequence[Sentence]) -> str:
    """Refuse what is no tag; the name of the scheme that the file's tags follow.

    IOB2 begins every entity with B-, IOB1 only one that follows another of its type. A file that
    does both is read by conlleval's rule, which gives either the entities that it means.
    """
    first_by: dict[str, int] = {}  # line of the first entity that begins with B- after O, or I-
    counts = {"B": 0, "I": 0}
    has_ends = False
    for one in sentences:
        before = OUTSIDE
        for number, tag in enumerate(one.tags, one.first_line):
            if not _TAG.fullmatch(tag):
                raise ValueError(
                    f"{path} row {number} has the tag {tag!r:.60}; a tag is O, or B- or I- and a "
                    "type, as B-PER: of IOB1, IOB2 or BIOES, in the last column"
                )
            letter = parts(tag)[0]
            has_ends |= letter in _ENDS_ENTITIES
            if begins(before, tag) and (letter == "I" or before == OUTSIDE):
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


def _entities(path: pathlib.Path, scheme: str, sentence: Sentence) -> list[Entity]:
    return _bioes_entities(path, sentence) if scheme == "BIOES" else entities(sentence.tags)


def _bioes_entities(path: pathlib.Path, sentence: Sentence) -> list[Entity]:
    """Entities from B- I- E- and S-, or B- I- L- and U-."""
    found: list[Entity] = []
    start, open_type = 0, ""  # of the entity that is not yet ended
    for place, tag in enumerate((*sentence.tags, OUTSIDE)):
        letter, kind = parts(tag)
        goes_on, ends = letter in "IEL", letter in "ELSU"
        if (goes_on and kind != open_type) or (not goes_on and open_type):
            line = sentence.first_line + min(place, len(sentence.tags) - 1)
            raise ValueError(
                f"{path} row {line}: {_seam(sentence, place)}, for the file has tags that end "
                "entities (E-, S-, L-, U-), as BIOES has and IOB has not; mend the row, or "
                "give the file in one scheme"
            )
        start = start if goes_on else place
        if ends:
            found.append(Entity(kind, start, place + 1))
        open_type = "" if ends else kind
    return found


def _seam(sentence: Sentence, place: int) -> str:
    """What does not go together before the word of a sentence, or at its end."""
    if place == len(sentence.tags):
        return f"{sentence.tags[-1]} cannot end a sentence"
    before = sentence.tags[place - 1] if place else "a sentence's beginning"
    return f"{sentence.tags[place]} cannot follow {before}"
