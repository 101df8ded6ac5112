"""Cleaning that a build does on request: its settings, and the rules that look at one document.

Rules that need the whole corpus, those for duplicates, are in data_pipeline.selection. What is left
out is counted under its reason in the manifest's "dropped"; a default build leaves out nothing but
what has no token.

A line is what the reader gives: with --sentences=split plain text has its lines joined, and a line
is a paragraph, which with --documents=blank_line is the whole document.
"""

import collections
import dataclasses
import re
import unicodedata
from typing import Literal

LONGEST_WORD_CHARS = 1_000_000
NORMAL_FORMS = ("none", "nfc", "nfkc")
KEEP, TOGETHER, DROP = "keep", "together", "drop"  # near duplicates

# Why something was left out, in the order in which it is decided; keys of the manifest's "dropped".
FILES_WITHOUT_TEXT = "files_without_text"
LONG_WORD_LINES = "lines_with_long_words"
SHORT_DOCUMENTS = "short_documents"
SENTENCES_WITHOUT_TOKENS = "sentences_without_tokens"
DOCUMENTS_WITHOUT_SENTENCES = "documents_without_sentences"
DUPLICATE_DOCUMENTS = "duplicate_documents"
NEAR_DUPLICATE_DOCUMENTS = "near_duplicate_documents"
DUPLICATE_LINES = "duplicate_lines"
DOCUMENTS_OF_DUPLICATE_LINES = "documents_of_duplicate_lines"
REASONS = (
    FILES_WITHOUT_TEXT,
    SENTENCES_WITHOUT_TOKENS,
    DOCUMENTS_WITHOUT_SENTENCES,
    LONG_WORD_LINES,
    SHORT_DOCUMENTS,
    DUPLICATE_DOCUMENTS,
    NEAR_DUPLICATE_DOCUMENTS,
    DUPLICATE_LINES,
    DOCUMENTS_OF_DUPLICATE_LINES,
)
NORMALIZED_DOCUMENTS = "normalized_documents"  # a key of the manifest's "changed"
COUNTED = (*REASONS, NORMALIZED_DOCUMENTS)

Document = list[str]  # paragraphs or lines, as data_pipeline.text yields them


@dataclasses.dataclass(frozen=True)
class CleaningOptions:
    """What to leave out or change, by default nothing; the fields are flags of the build."""

    normalize: str = "none"  # Unicode normal form of the text, one of NORMAL_FORMS
    min_document_chars: int = 0  # a shorter document is left out
    max_word_chars: int = 0  # a line with a longer word is left out; 0: none is
    drop_duplicate_documents: bool = False  # all but the first of equal ones
    drop_duplicate_lines: bool = False  # wherever in the corpus the first one is
    near_duplicates: str = KEEP  # or TOGETHER on one side of the held-out split, or DROP
    near_duplicate_threshold: float = 0.8  # share of 5-word runs in common (Jaccard)

    def check(self) -> None:
        """Raise if a value is outside what is allowed.

        Raises:
          ValueError: names the flag, its value and what is allowed.
        """
        if self.normalize not in NORMAL_FORMS:
            raise ValueError(
                f"--normalize is {self.normalize!r}; it must be one of {', '.join(NORMAL_FORMS)}"
            )
        if self.near_duplicates not in (KEEP, TOGETHER, DROP):
            raise ValueError(
                f"--near_duplicates is {self.near_duplicates!r}; it must be {KEEP}, {TOGETHER} "
                f"(on one side of the held-out split) or {DROP}"
            )
        if not 0.5 <= self.near_duplicate_threshold <= 1.0:
            raise ValueError(
                f"--near_duplicate_threshold is {self.near_duplicate_threshold}; it must be from "
                "0.5 to 1 (default 0.8)"
            )
        has_threshold = self.near_duplicate_threshold != CleaningOptions.near_duplicate_threshold
        if has_threshold and not self.finds_near_duplicates:
            raise ValueError(
                f"--near_duplicate_threshold is {self.near_duplicate_threshold}, but "
                f"--near_duplicates is {KEEP}, which compares nothing; give --near_duplicates="
                f"{TOGETHER} or {DROP} too, or leave it out"
            )
        if self.min_document_chars < 0:
            raise ValueError(
                f"--min_document_chars is {self.min_document_chars}; it must be 0 or more"
            )
        if not 0 <= self.max_word_chars <= LONGEST_WORD_CHARS:
            raise ValueError(
                f"--max_word_chars is {self.max_word_chars}; it must be from 0 (no limit) to "
                f"{LONGEST_WORD_CHARS}"
            )

    @property
    def finds_near_duplicates(self) -> bool:
        return self.near_duplicates != KEEP

    @property
    def compares_documents(self) -> bool:
        """Whether anything needs the whole corpus."""
        return (
            self.drop_duplicate_documents or self.drop_duplicate_lines or self.finds_near_duplicates
        )


def clean_documents(
    documents: list[Document], options: CleaningOptions, counts: collections.Counter[str]
) -> list[Document]:
    """Apply the rules that look at one document, and add to `counts` what they leave out.

    Order: the normal form, then lines with long words, then the length of what is left.
    """
    if options.normalize != "none":
        documents = _normalized(documents, options.normalize, counts)
    if options.max_word_chars:
        documents = _without_long_words(documents, options.max_word_chars, counts)
    if options.min_document_chars:
        read = len(documents)
        documents = [d for d in documents if sum(map(len, d)) >= options.min_document_chars]
        counts[SHORT_DOCUMENTS] += read - len(documents)
    return documents


def _normalized(
    documents: list[Document], normalize: str, counts: collections.Counter[str]
) -> list[Document]:
    form: Literal["NFC", "NFKC"] = "NFC" if normalize == "nfc" else "NFKC"
    normal = [
        [unicodedata.normalize(form, line).strip() for line in document] for document in documents
    ]
    changed = sum(before != after for before, after in zip(documents, normal, strict=True))
    counts[NORMALIZED_DOCUMENTS] += changed
    return normal


def _without_long_words(
    documents: list[Document], max_word_chars: int, counts: collections.Counter[str]
) -> list[Document]:
    has_long_word = re.compile(rf"\S{{{max_word_chars + 1}}}").search
    kept = [[line for line in document if not has_long_word(line)] for document in documents]
    counts[LONG_WORD_LINES] += sum(map(len, documents)) - sum(map(len, kept))
    return kept
