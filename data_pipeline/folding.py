"""What a document says, blind to case, white space and the digits' values."""

import hashlib
import re
from collections.abc import Iterable

_DIGIT = re.compile(r"\d")

_ASCII = bytes(range(128))
_ASCII_SPACE = bytes(code for code in _ASCII if chr(code).isspace())
_CAPITALS = bytes(range(ord("A"), ord("Z") + 1))
_FOLD = bytes.maketrans(
    _CAPITALS + b"0123456789" + _ASCII_SPACE,
    _CAPITALS.lower() + b"0" * 10 + b" " * len(_ASCII_SPACE),
)


def folded(paragraphs: Iterable[str]) -> bytes:
    """The words of a document, case folded, digits as 0, a space between two; UTF-8.

    The same bytes as those of str.casefold, str.split and a regular expression for digits, which
    take three times as long: only the few characters beyond ASCII are looked at one by one.
    """
    text = " ".join(paragraphs)
    data = (text if text.isascii() else text.casefold()).encode()
    beyond_ascii = data.translate(None, _ASCII).decode()
    if any(character.isspace() or character.isdecimal() for character in set(beyond_ascii)):
        return _DIGIT.sub("0", " ".join(data.decode().split())).encode()
    data = data.translate(_FOLD).strip()
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data


def document_hash(folded_text: bytes) -> int:
    """A 64-bit hash of a document, folded: it decides on which side of the held-out split it goes.

    Copies of a page that differ in a date, a counter or the line breaks get one hash, so they
    land on one side. It does not depend on the vocabulary or the sentences.
    """
    return int.from_bytes(hashlib.blake2b(folded_text, digest_size=8).digest(), "big")
