"""Declare the settings by which text is split into documents and sentences."""

import dataclasses
import re

from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import check_fields, setting

DEFAULT_KEY = "text"
_IS_LANGUAGE = re.compile(  # ISO 639-1, or three letters, of ISO 639-3
    "a[abefkmnrsvyz]|b[aeghimnors]|c[aehorsuvy]|d[aevz]|e[elnostu]|f[afijory]|g[adlnuv]|"
    "h[aeiortuyz]|i[adegikostu]|j[av]|k[agijklmnorsuvwy]|l[abginotuv]|m[ghiklnrsty]|"
    "n[abdeglnorvy]|o[cjmrs]|p[ailst]|q[u]|r[mnouw]|s[acdeghiklmnoqrstuvw]|t[aeghiklnorstwy]|"
    "u[gkrz]|v[eio]|w[ao]|x[h]|y[io]|z[ahu]|[a-z]{3}"
).fullmatch
_ASCII = bytes(range(128)) + b"\x1b$B"  # and an escape, which ISO-2022-JP takes for its own


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Choose how files are split into documents and sentences; the fields are flags of a build."""

    documents: str = setting(
        "blank_line",
        "what a document is in plain text; in other formats it is a record",
        choices=("blank_line", "line", "file", "gutenberg", "chapters"),
    )
    sentences: str = setting(
        "split",
        "split finds the sentences in the text, lines takes each line as a sentence",
        choices=("split", "lines"),
    )
    language: str = setting(
        "en", "language whose rules find the sentences: two or three letters (ISO 639)"
    )
    format: str = setting(
        "auto",
        "auto detects each file's format, text reads every file as plain text, whatever it looks "
        "like",
        choices=("auto", "text"),
    )
    text_key: str = setting(
        "",
        "key or column that holds the text in JSON, csv, tsv, Parquet, Arrow or TFDS, a nested one "
        f"as KEY.KEY; default: {DEFAULT_KEY}, but csv and tsv need it",
    )
    fallback_encoding: str = setting(
        "",
        "encoding of the lines that are not UTF-8, as in cp1252, cp1251 or shift_jis; default: "
        "they are refused",
    )

    @property
    def key(self) -> str:
        """Return the key or column of the text where the format has a usual one."""
        return self.text_key or DEFAULT_KEY

    def check(self) -> None:
        """Raise Refused if a rule is unknown, a language is not a code or two rules contradict."""
        check_fields(self, "--")
        if not _IS_LANGUAGE(self.language):
            raise Refused(
                f"--language is {self.language!r}; it must be the code of a language in ISO 639, "
                "of two or three lower-case letters, as in --language=de, or cs for Czech"
            )
        if self.documents in ("gutenberg", "chapters") and self.sentences == "lines":
            raise Refused(
                f"--sentences is lines, but with --documents={self.documents} a line is part of "
                "a wrapped paragraph, not a sentence; use --sentences=split"
            )
        if self.fallback_encoding and not _extends_ascii(self.fallback_encoding):
            raise Refused(
                f"--fallback_encoding is {self.fallback_encoding!r}; it must be an encoding that "
                "Python knows and that has ASCII in it, such as cp1252 (Western Europe), cp1251 "
                "(Cyrillic), shift_jis or gb18030; UTF-16 is read by its byte order mark"
            )


def _extends_ascii(encoding: str) -> bool:
    """Return whether the bytes of ASCII mean ASCII, so that lines can be found before decoding."""
    try:
        bytes(range(128, 256)).decode(encoding, "replace")
        return _ASCII.decode(encoding) == _ASCII.decode("ascii")
    except (LookupError, ValueError, TypeError):
        return False
