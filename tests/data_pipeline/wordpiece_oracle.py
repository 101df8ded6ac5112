"""Apply WordPiece by tokenization.py@eedf5716ce in plain Python: the oracle of encode."""

import unicodedata
from collections.abc import Iterator

_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def encode(text: str, id_of: dict[str, int], lowercase: bool) -> list[int]:
    """Return the ids of a text, without special tokens."""
    return [id_of[piece] for word in _words(text, lowercase) for piece in _pieces(word, id_of)]


def _words(text: str, lowercase: bool) -> Iterator[str]:
    for chunk in "".join(map(_cleaned, text)).split():
        if lowercase:
            decomposed = unicodedata.normalize("NFD", chunk.lower())
            chunk = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        word = ""
        for char in chunk:
            if not _is_punctuation(char):
                word += char
                continue
            if word:
                yield word
            yield char
            word = ""
        if word:
            yield word


def _cleaned(char: str) -> str:
    if char in "\t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    if char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"):
        return ""
    return f" {char} " if any(low <= ord(char) <= high for low, high in _CHINESE) else char


def _is_punctuation(char: str) -> bool:
    is_ascii_symbol = 33 <= ord(char) <= 126 and not char.isalnum()
    return is_ascii_symbol or unicodedata.category(char).startswith("P")


def _pieces(word: str, id_of: dict[str, int]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if mark + word[start:end] in id_of), None)
        if end is None:
            return ["[UNK]"]
        pieces.append(mark + word[start:end])
        start = end
    return pieces
