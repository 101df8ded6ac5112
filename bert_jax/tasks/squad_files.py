"""SQuAD's official JSON, read and checked: paragraphs, their questions, where answers stand."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from data_pipeline import small_files
from data_pipeline.compression import decompressed
from data_pipeline.json_stream import JsonStream


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer as the file gives it."""

    text: str
    answer_start: int  # its first character in the context


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a paragraph; without answers it is unanswerable, or of a test set."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text and what is asked of it."""

    context: str
    questions: tuple[Question, ...]


@dataclasses.dataclass(frozen=True)
class SquadFile:
    """A file of SQuAD."""

    path: pathlib.Path
    version: str  # as it says: "1.1", "v2.0", or "" where it says none
    paragraphs: tuple[Paragraph, ...]

    def questions(self) -> Iterator[Question]:
        """All questions, in the order of the file."""
        for paragraph in self.paragraphs:
            yield from paragraph.questions

    @property
    def has_unanswerable(self) -> bool:
        """Whether the file is of SQuAD 2.0: it says so, or a question has no answer."""
        if self.version.removeprefix("v").startswith("2"):
            return True
        return any(not question.answers for question in self.questions())


_FORM = (
    'SQuAD\'s JSON is {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id": ..., '
    '"question": ..., "answers": [{"text": ..., "answer_start": ...}]}]}]}]}'
)
_JSON_NAMES = {str: "a string", int: "a whole number", list: "a list", dict: "an object"}


def read_squad(path: pathlib.Path, has_answers: bool = True) -> SquadFile:
    """Read a file of SQuAD 1.1 or 2.0, plain or compressed; of a test set answers may be missing.

    Raises:
      ValueError: no such file, or what is wrong in it and where: article, paragraph, question.
      OSError: it cannot be read.
    """
    facts: dict[str, Any] = {}
    paragraphs = tuple(stream_paragraphs(path, has_answers, facts))
    return SquadFile(path, str(facts.get("version", "")), paragraphs)


def stream_paragraphs(
    path: pathlib.Path, has_answers: bool, facts: dict[str, Any] | None = None
) -> Iterator[Paragraph]:
    """Yield the paragraphs of a file of any length, one in memory at a time.

    facts gets what the file says beside them, its version; all of it once the last was yielded.

    Raises:
      ValueError, OSError: as of read_squad.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give the path of one")
    seen: dict[str, str] = {}
    with small_files.open_regular(path) as stored:
        stream = JsonStream(decompressed(str(path), stored), path)
        has_data = False
        for key in stream.members(path):
            if key == "data":
                has_data = True
                yield from _articles(stream, path, has_answers, seen)
            elif facts is not None:
                facts[key] = stream.value()
            else:
                stream.value()
        stream.end()
    if not has_data:
        raise ValueError(f"{path} has no 'data'; {_FORM}")
    if not seen:
        raise ValueError(f"{path} has no question; {_FORM}")


def _articles(
    stream: JsonStream, path: pathlib.Path, has_answers: bool, seen: dict[str, str]
) -> Iterator[Paragraph]:
    for number in stream.items(f"{path}: 'data'"):
        has_paragraphs = False
        for key in stream.members(f"{path} article {number}"):
            if key != "paragraphs":
                stream.value()
                continue
            has_paragraphs = True
            for which in stream.items(f"{path} article {number}: 'paragraphs'"):
                place = f"article {number} paragraph {which}"
                yield _paragraph(stream.value(), path, place, has_answers, seen)
        if not has_paragraphs:
            raise ValueError(f"{path} article {number} has no 'paragraphs'; {_FORM}")


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
    """Read the JSON object of a file of predictions or odds, plain or compressed.

    Raises:
      ValueError: no such file, not UTF-8, not JSON, or not an object.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give the path of one")
    with small_files.open_regular(path) as stored:
        stream = JsonStream(decompressed(str(path), stored), path)
        found = {key: stream.value() for key in stream.members(path)}
        stream.end()
    return found


def _paragraph(
    one: Any, path: pathlib.Path, place: str, has_answers: bool, seen: dict[str, str]
) -> Paragraph:
    """One paragraph; `seen` has the places of the ids so far, and gets its own."""
    context = _field(one, "context", str, f"{path} {place}")
    questions = []
    for number, qa in enumerate(_field(one, "qas", list, f"{path} {place}"), 1):
        question_id = _question_id(qa, f"{path} {place} question {number}")
        where = f"{path} {place} question {number} ({question_id})"
        if question_id in seen:
            raise ValueError(
                f"{where} has the id of {seen[question_id]}; predictions go by id: give each "
                "question its own"
            )
        seen[question_id] = f"{place} question {number}"
        text = _field(qa, "question", str, where)
        # What annotators took for the answer of an unanswerable question is none.
        wants_answers = (has_answers or "answers" in qa) and not qa.get("is_impossible", False)
        answers = _answers(qa, where) if wants_answers else ()
        questions.append(Question(question_id, text, answers))
    return Paragraph(context, tuple(questions))


def _question_id(qa: Any, place: str) -> str:
    """Take an id as a string; published files have numbers too, as Google's code and others do."""
    if type(qa) is dict and type(qa.get("id")) is int:
        return str(qa["id"])
    return str(_field(qa, "id", str, place))


def _answers(qa: Any, where: str) -> tuple[Answer, ...]:
    return tuple(
        Answer(
            _field(answer, "text", str, f"{where} answer {which}"),
            _field(answer, "answer_start", int, f"{where} answer {which}"),
        )
        for which, answer in enumerate(_field(qa, "answers", list, where), 1)
    )


def _field(record: Any, name: str, kind: type, place: str) -> Any:
    if type(record) is not dict:
        raise ValueError(f"{place} is a JSON {type(record).__name__}, not an object; {_FORM}")
    if name not in record:
        raise ValueError(f"{place} has no {name!r}; {_FORM}")
    if type(record[name]) is not kind:
        raise ValueError(f"{place}: {name!r} is {record[name]!r:.80}, not {_JSON_NAMES[kind]}")
    return record[name]


def answer_span(context: str, answer: Answer) -> tuple[int, int] | None:
    """First character of an answer in its context and the one after it; None if not there.

    An answer that begins elsewhere in the words that answer_start names is taken where it begins,
    and white space in it may differ, as in run_squad.py; beyond those words nothing is looked for.

    Source: run_squad.py@eedf5716ce read_squad_examples.
    """
    start, words = answer.answer_start, answer.text.split()
    end = start + len(answer.text)
    if not words or start < 0 or end > len(context):
        return None
    if context[start:end] == answer.text:
        return start, end
    while start > 0 and not context[start - 1].isspace():
        start -= 1
    while end < len(context) and not context[end].isspace():
        end += 1
    found = re.search(r"\s+".join(map(re.escape, words)), context[start:end])
    return (start + found.start(), start + found.end()) if found else None
