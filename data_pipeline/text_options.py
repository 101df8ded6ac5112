"""How text is cut into documents and sentences: the settings, and the check of them."""

import dataclasses
import re

DOCUMENT_RULES = ("blank_line", "file", "gutenberg", "chapters")
SENTENCE_RULES = ("split", "lines")


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """How files are cut into documents and sentences; the fields are flags of the build."""

    documents: str = "blank_line"  # of plain text; every other format brings its own
    sentences: str = "split"  # "split" finds sentences, "lines" takes one a line
    language: str = "en"  # whose rules find the sentences; an ISO 639 code
    text_key: str = "text"  # of a JSON line, a Parquet column or a TFDS feature

    def check(self) -> None:
        """Raise if a rule is unknown, a language is no code or two rules contradict each other.

        Raises:
          ValueError: names the flag, its value and what is allowed.
        """
        if self.documents not in DOCUMENT_RULES:
            raise ValueError(
                f"--documents is {self.documents!r}; it must be one of {', '.join(DOCUMENT_RULES)}"
            )
        if self.sentences not in SENTENCE_RULES:
            raise ValueError(
                f"--sentences is {self.sentences!r}; it must be one of {', '.join(SENTENCE_RULES)}"
            )
        if not re.fullmatch("[a-z]{2,3}", self.language):
            raise ValueError(
                f"--language is {self.language!r}; it must be a code of two or three lower-case "
                "letters, as in --language=de"
            )
        if self.documents in ("gutenberg", "chapters") and self.sentences == "lines":
            raise ValueError(
                f"--sentences is lines, but with --documents={self.documents} a line is a piece of "
                "a wrapped paragraph, not a sentence; use --sentences=split"
            )
