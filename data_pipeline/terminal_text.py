"""Show text from outside on a terminal, which must not obey it: file names, sentences, JSON."""

import re

# Control characters but for tab and newline, those that turn the direction of writing or end a
# line, and the halves of a character that stand for bytes of a file name that is not UTF-8.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape(text: str) -> str:
    """Replace what a terminal would obey, or could not write, by its number."""
    return _OBEYED.sub(_number, text)


def _number(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
