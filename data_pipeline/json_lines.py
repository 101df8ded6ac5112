"""JSON lines to documents: one JSON object a line, its text under a key."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from data_pipeline.document_size import grown
from data_pipeline.lines import numbered_lines, paragraphs_of
from data_pipeline.small_files import kind_in_words

_FORM = (
    "JSON lines (a .json or .jsonl file, or one whose first line is a JSON object) must hold one "
    "JSON object a line"
)


def opens_json_lines(line: str) -> bool:
    """Whether a file whose first line with text is this one holds JSON lines."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        return type(json.loads(line)) is dict
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # JSON, but beyond what Python reads: _record says so
        return True


def read_records(
    address: str, lines: Iterable[str], first_line: int, text_key: str
) -> Iterator[list[str]]:
    """Yield the text of each line's object, cut into its lines; `first_line` numbers the first.

    A text that is null is a document without text.

    Raises:
      ValueError: no JSON, no object, no text under `text_key`, text that is not Unicode, or
        more than a document may have; the sentence names file and line.
    """
    for number, line in numbered_lines(lines, first_line):
        if not line.strip():
            continue
        place = f"{address} line {number}"
        record = _record(place, line)
        text = record.get(text_key)
        if text is None and text_key in record:  # as writers of tables say it
            yield []
            continue
        if type(text) is not str:
            if text_key in record:
                raise ValueError(
                    f"{place} has {kind_in_words(text)} under the key {text_key!r}, and text is "
                    'needed, as in "text": "..."; write it as a string, or name another key with '
                    "--text_key=KEY"
                )
            raise ValueError(
                f"{place} has no key {text_key!r}; its keys are {sorted(record)[:8]}; name the "
                "right one with --text_key=KEY"
            )
        _check_unicode(place, text_key, text)
        grown(address, 0, text)
        yield paragraphs_of(text)


def _record(place: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{place} is not JSON ({error.msg} at character {error.pos + 1}); {_FORM}"
        ) from error
    except ValueError as error:  # the only other one: Python reads integers of so many digits
        raise ValueError(
            f"{place} has a number of too many digits to be read ({str(error).split(';')[0]}); "
            "write it as a string, or leave it out"
        ) from error
    except RecursionError as error:
        raise ValueError(
            f"{place} has lists or objects nested too deeply to be read; write its text as a "
            "plain string, and leave the rest out"
        ) from error
    if type(record) is not dict:
        raise ValueError(f"{place} is a JSON {type(record).__name__}, not an object; {_FORM}")
    return record


def _check_unicode(place: str, text_key: str, text: str) -> None:
    r"""Refuse half of a pair of \u escapes, which is no character and has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place} has half a character, \\u{ord(text[error.start]):04x}, under the key "
            f"{text_key!r} at character {error.start + 1}: its writer cut a pair of \\u escapes "
            "in two; write the file again, or remove the line"
        ) from error
