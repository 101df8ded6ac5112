"""Clean documents on request: the settings, and the rules that look at a single document.

Rules for duplicates, which need the whole corpus, are in data_pipeline.corpus.selection. What
is dropped is counted under its reason in the manifest's "dropped"; a default build drops only what
has no token.

A line is what the reader yields: with --sentences=split the lines of a paragraph are joined into
one, which with --documents=blank_line is the whole document.
"""

import collections
import dataclasses
import enum
import functools
import itertools
import re
import unicodedata
from typing import Literal

from data_pipeline.io import Refused
from data_pipeline.spec.fields import check_fields, setting

MAX_WORD_CHARS = 1_000_000
MAX_MARKS = 30  # combining marks in a row (UAX #15)
NORMAL_FORMS = ("none", "nfc", "nfkc")
KEEP, TOGETHER, DROP = "keep", "together", "drop"  # near duplicates


class Dropped(enum.StrEnum):
    """Name the reasons for dropping: keys of the manifest's "dropped", in their order."""

    FILES_WITHOUT_TEXT = "files_without_text"
    SENTENCES_WITHOUT_TOKENS = "sentences_without_tokens"
    DOCUMENTS_WITHOUT_SENTENCES = "documents_without_sentences"
    LONG_WORD_LINES = "lines_with_long_words"
    SHORT_DOCUMENTS = "short_documents"
    DUPLICATE_DOCUMENTS = "duplicate_documents"
    NEAR_DUPLICATE_DOCUMENTS = "near_duplicate_documents"
    DUPLICATE_LINES = "duplicate_lines"
    DOCUMENTS_OF_DUPLICATE_LINES = "documents_of_duplicate_lines"


class Changed(enum.StrEnum):
    """Name the changes to a text: keys of the manifest's "changed"."""

    NORMALIZED_DOCUMENTS = "normalized_documents"
    CUT_MARKS = "cut_combining_marks"
    FALLBACK_FILES = "files_in_fallback_encoding"
    REPLACED_BYTES = "replaced_bytes"


class Counted(enum.StrEnum):
    """Name the counts of a text that stays as it is: keys of the manifest's "counted"."""

    HYPHENATED_LINES = "hyphenated_lines"
    CHARACTERS = "characters"
    LONG_WORD_CHARACTERS = "long_word_characters"
    HTML_MARKS = "html_marks"


COUNTED = (*Dropped, *Changed, *Counted)
Document = list[str]  # paragraphs or lines, as data_pipeline.read.documents yields them


@dataclasses.dataclass(frozen=True)
class CleaningOptions:
    """Choose what to drop or change, by default nothing; the fields are flags of a build."""

    normalize: str = setting("none", "Unicode normal form of the text", choices=NORMAL_FORMS)
    min_document_chars: int = setting(0, "drop documents with fewer characters", minimum=0)
    max_word_chars: int = setting(
        0,
        "drop lines (of plain text: paragraphs, with --sentences=split) with a word of more "
        "characters, such as base64 or tables without spaces; 0: no limit",
        minimum=0,
        maximum=MAX_WORD_CHARS,
    )
    drop_duplicate_documents: bool = setting(False, "drop all but the first of equal documents")
    drop_duplicate_lines: bool = setting(
        False,
        "drop a line (of plain text: a paragraph, with --sentences=split) that occurred before "
        "anywhere",
    )
    near_duplicates: str = setting(
        KEEP,
        f"{TOGETHER} keeps a cluster on one side of the held-out split, {DROP} keeps only the "
        "first of a cluster",
        choices=(KEEP, TOGETHER, DROP),
    )
    near_duplicate_threshold: float = setting(
        0.8,
        "near duplicates share this much of their 5-word runs (Jaccard similarity)",
        minimum=0.5,
        maximum=1,
    )

    def check(self) -> None:
        """Raise Refused if a value is not allowed."""
        check_fields(self, "--")
        has_threshold = self.near_duplicate_threshold != CleaningOptions.near_duplicate_threshold
        if has_threshold and not self.finds_near_duplicates:
            raise Refused(
                f"--near_duplicate_threshold is {self.near_duplicate_threshold}, but "
                f"--near_duplicates is {KEEP}, which compares nothing; give --near_duplicates="
                f"{TOGETHER} or {DROP} too, or leave it out"
            )

    @property
    def finds_near_duplicates(self) -> bool:
        return self.near_duplicates != KEEP

    @property
    def compares_documents(self) -> bool:
        """Return whether a rule needs the whole corpus."""
        return (
            self.drop_duplicate_documents or self.drop_duplicate_lines or self.finds_near_duplicates
        )


def clean_documents(
    documents: list[Document], options: CleaningOptions, counts: collections.Counter[str]
) -> list[Document]:
    """Apply the rules that look at a single document, and add to `counts` what they drop."""
    if options.normalize != "none":
        form: Literal["NFC", "NFKC"] = "NFC" if options.normalize == "nfc" else "NFKC"
        read = documents
        documents = [[_normalize(form, line, counts).strip() for line in d] for d in read]
        changed = sum(before != after for before, after in zip(read, documents, strict=True))
        counts[Changed.NORMALIZED_DOCUMENTS] += changed
    if options.max_word_chars:
        has_long_word = re.compile(rf"(?<!\S)\S{{{options.max_word_chars + 1}}}").search
        lines_read = sum(map(len, documents))
        documents = [[line for line in d if not has_long_word(line)] for d in documents]
        counts[Dropped.LONG_WORD_LINES] += lines_read - sum(map(len, documents))
    if options.min_document_chars:
        documents_read = len(documents)
        documents = [d for d in documents if sum(map(len, d)) >= options.min_document_chars]
        counts[Dropped.SHORT_DOCUMENTS] += documents_read - len(documents)
    return documents


def _normalize(form: Literal["NFC", "NFKC"], line: str, counts: collections.Counter[str]) -> str:
    """Normalize a line; cut and count the combining marks after MAX_MARKS of them in a row.

    Sorting a longer run takes time quadratic in its length. Source: UAX #15, stream-safe text.
    """
    if not line.isascii() and (cut := _long_marks().sub("", line)) != line:
        counts[Changed.CUT_MARKS] += len(line) - len(cut)
        line = cut
    return unicodedata.normalize(form, line)


@functools.cache
def _long_marks() -> re.Pattern[str]:
    """Compile a pattern for the combining marks that follow MAX_MARKS of them in a row."""
    marks = "".join(
        char
        for char in map(chr, itertools.chain(range(0x300, 0x20000), range(0xE0000, 0xE1000)))
        if not "\ud800" <= char <= "\udfff"
        and unicodedata.combining(unicodedata.normalize("NFKD", char)[0])
    )
    return re.compile(f"(?<=[{marks}]{{{MAX_MARKS}}})[{marks}]+")
