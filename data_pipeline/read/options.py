"""Declare the settings by which text is split into documents and sentences."""

import dataclasses
import re

from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import check_fields, setting

DOCUMENT_RULES = ("blank_line", "file", "gutenberg", "chapters")
SENTENCE_RULES = ("split", "lines")


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Choose how files are split into documents and sentences; the fields are flags of a build."""

    documents: str = setting(
        "blank_line",
        "what a document is in plain text; every other format brings its own",
        choices=DOCUMENT_RULES,
    )
    sentences: str = setting(
        "split",
        "split finds the sentences in the text, lines takes each line as a sentence",
        choices=SENTENCE_RULES,
    )
    language: str = setting(
        "en", "language whose rules find the sentences: two or three letters (ISO 639)"
    )
    text_key: str = setting("text", "key or column that holds the text in JSON, Parquet or TFDS")

    def check(self) -> None:
        """Raise Refused if a rule is unknown, a language is no code or two rules contradict."""
        check_fields(self, "--")
        if not re.fullmatch("[a-z]{2,3}", self.language):
            raise Refused(
                f"--language is {self.language!r}; it must be a code of two or three lower-case "
                "letters, as in --language=de"
            )
        if self.documents in ("gutenberg", "chapters") and self.sentences == "lines":
            raise Refused(
                f"--sentences is lines, but with --documents={self.documents} a line is part of "
                "a wrapped paragraph, not a sentence; use --sentences=split"
            )
