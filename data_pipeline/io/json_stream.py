"""Read a JSON document of any length a value at a time, with bounded memory.

The caller reads the document in order: `members` iterates over an object, `items` over a list, and
`value` returns the next value. Every member and item must be read. Whatever is wrong with the
document raises DamagedFile.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

from data_pipeline.io.small_files import (
    MAX_BYTES,
    MAX_DEPTH,
    DamagedFile,
    measure_nesting,
    name_kind,
)

_BLOCK_CHARS = 1 << 16
_LOOK_AHEAD = 3  # a truncated "1e-3" parses as 1: require text after a number
_WHITE = " \t\r\n"


class JsonStream:
    """Read a JSON document on demand, from its start to its end."""

    def __init__(self, blocks: Iterable[bytes], name: object) -> None:
        """Take the blocks of the document, in UTF-8; `name` is for errors."""
        self._blocks, self._name = iter(blocks), name
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._parse = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0  # the text in memory, and the index of the next character
        self._bytes, self._lines = 0, 0  # bytes read, and line feeds no longer in memory
        self._is_whole = False  # the document's end is in memory

    def members(self, place: object) -> Iterator[str]:
        """Yield the keys of the object that comes next; place names it in errors."""
        self._open("{", "an object", place)
        while self._goes_on("}"):
            if self._peek() != '"':
                raise self._wrong("a key in double quotes is missing")
            key = str(self.value())
            if self._peek() != ":":
                raise self._wrong("a colon is missing")
            self._at += 1
            yield key

    def items(self, place: object) -> Iterator[int]:
        """Yield the number, from 1, of each item of the list that comes next."""
        self._open("[", "a list", place)
        number = 0
        while self._goes_on("]"):
            number += 1
            yield number

    def value(self) -> Any:
        """Take the value that comes next; one nested too deep or over MAX_BYTES is damage."""
        self._peek()
        while True:
            try:
                value, end = self._parse(self._text, self._at)
                if end + _LOOK_AHEAD <= len(self._text) or self._is_whole:
                    break
            except RecursionError:
                raise self._too_deep() from None
            except json.JSONDecodeError as error:
                if self._is_whole:
                    raise self._wrong(error.msg, error.pos) from None
            except ValueError as error:  # a number of thousands of digits
                raise self._wrong(str(error)) from None
            if len(self._text) - self._at > MAX_BYTES:
                raise self._wrong(f"a value is longer than {MAX_BYTES:,} characters, or never ends")
            self._fill(max(_BLOCK_CHARS, len(self._text) - self._at))
        if measure_nesting(self._text[self._at : end].encode("utf-8", "replace")) > MAX_DEPTH:
            raise self._too_deep()
        self._at = end
        return value

    def end(self) -> None:
        """Check that the document ends here."""
        if self._peek():
            raise self._wrong("something follows the document's end")

    def _open(self, bracket: str, kind: str, place: object) -> None:
        if self._peek() != bracket:
            value = self.value()
            raise DamagedFile(f"{place} is {name_kind(value)}, not {kind}")
        self._at += 1
        self._is_first = True

    def _goes_on(self, bracket: str) -> bool:
        """Skip a comma, or the closing bracket; return whether another entry follows."""
        character = self._peek()
        is_first, self._is_first = self._is_first, False
        if character == bracket:
            self._at += 1
            return False
        if is_first:
            return True
        if character != ",":
            raise self._wrong(f"',' or {bracket!r} is missing")
        self._at += 1
        self._peek()
        return True

    def _peek(self) -> str:
        """Skip white space; return the next character, "" at the document's end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _WHITE:
                    return self._text[self._at]
                self._at += 1
            if self._is_whole:
                return ""
            self._fill(_BLOCK_CHARS)

    def _fill(self, chars: int) -> None:
        """Discard the consumed text, and read about `chars` more characters."""
        self._lines += self._text.count("\n", 0, self._at)
        parts = [self._text[self._at :]]
        more = 0
        while more < chars and not self._is_whole:
            block = next(self._blocks, b"")
            self._is_whole = not block
            try:
                parts.append(self._decoder.decode(block, final=self._is_whole))
            except UnicodeDecodeError as error:
                place = self._bytes + max(0, error.start)
                raise DamagedFile(
                    f"{self._name} is not UTF-8 at byte {place:,}; download or write it again"
                ) from None
            self._bytes += len(block)
            more += len(parts[-1])
        self._text, self._at = "".join(parts), 0

    def _wrong(self, reason: str, index: int | None = None) -> DamagedFile:
        index = self._at if index is None else index
        line = self._lines + self._text.count("\n", 0, index) + 1
        column = index - self._text.rfind("\n", 0, index)
        return DamagedFile(
            f"{self._name} is not JSON: {reason} at line {line}, column {column}; download or "
            "write it again"
        )

    def _too_deep(self) -> DamagedFile:
        return DamagedFile(f"{self._name} is nested deeper than {MAX_DEPTH} levels")
