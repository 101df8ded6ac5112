"""Declare the settings by which text is split into documents and sentences."""

import dataclasses
import re

from data_pipeline.io import Refused
from data_pipeline.spec.fields import check_fields, setting

DEFAULT_KEY = "text"
_ISO_639_1 = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv "
    "cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr "
    "ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw "
    "ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv "
    "ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq "
    "sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh "
    "yi yo za zh zu"
)
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
        if self.language not in _ISO_639_1.split() and not re.fullmatch("[a-z]{3}", self.language):
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
