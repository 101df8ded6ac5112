"""Read and check SQuAD's official JSON: paragraphs, their questions, the positions of answers."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from data_pipeline.io import Refused, small_files
from data_pipeline.io.compression import decompress
from data_pipeline.io.small_files import DamagedFile


@dataclasses.dataclass(frozen=True)
class Answer:
    """Hold an answer as it is in the file."""

    text: str
    answer_start: int  # index of its first character in the context


@dataclasses.dataclass(frozen=True)
class SquadQuestion:
    """Hold a question; without answers it is unanswerable, or from a test set."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """Hold a text and the questions about it."""

    context: str
    questions: tuple[SquadQuestion, ...]


@dataclasses.dataclass(frozen=True)
class SquadFile:
    """Hold a file of SQuAD."""

    path: pathlib.Path
    version: str  # the file's own: "1.1", "v2.0" or ""
    paragraphs: tuple[Paragraph, ...]

    def questions(self) -> Iterator[SquadQuestion]:
        """Yield all questions in the order of the file."""
        for paragraph in self.paragraphs:
            yield from paragraph.questions

    @property
    def has_unanswerable(self) -> bool:
        """Return whether the file is SQuAD 2.0, by its version or a question without answers."""
        if re.fullmatch(r"v?2(\.0)?", self.version):  # not a date, as other data sets have
            return True
        return any(not question.answers for question in self.questions())


_FORM = (
    'SQuAD\'s JSON is {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id": ..., '
    '"question": ..., "answers": [{"text": ..., "answer_start": ...}]}]}]}]}'
)
_MAX_BYTES = 1 << 30  # a decompressed file's; SQuAD's largest has 42 MB


def read_squad(path: pathlib.Path, has_answers: bool = True) -> SquadFile:
    """Read a file of SQuAD 1.1 or 2.0, plain or compressed; a test set's answers are unread.

    Raises:
      Refused: the file is missing or malformed; names the article, paragraph and question.
      OSError: it cannot be read.
    """
    content = read_json_object(path)
    seen: dict[str, str] = {}
    paragraphs = []
    for number, article in enumerate(_field(content, "data", list, str(path)), 1):
        place = f"{path} article {number}"
        for index, record in enumerate(_field(article, "paragraphs", list, place), 1):
            full_place = f"{place} paragraph {index}"
            context = _field(record, "context", str, full_place)
            questions = tuple(
                _read_question(qa, f"{full_place} question {count}", has_answers, seen)
                for count, qa in enumerate(_field(record, "qas", list, full_place), 1)
            )
            paragraphs.append(Paragraph(context, questions))
    if not seen:
        raise Refused(f"{path} has no question; {_FORM}")
    return SquadFile(path, str(content.get("version", "")), tuple(paragraphs))


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
    """Read the JSON object of a file of questions, predictions or odds, plain or compressed."""
    if not path.is_file():
        raise Refused(f"{path} is not a file; give the path of one")
    data = bytearray()
    with small_files.open_regular(path) as stored:
        for block in decompress(str(path), stored):
            data += block
            if len(data) > _MAX_BYTES:
                raise Refused(f"{path} has more than {_MAX_BYTES:,} bytes; give it in parts")
    try:
        return small_files.parse_object(bytes(data), path)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; download or write it again") from None


def _read_question(qa: Any, place: str, has_answers: bool, seen: dict[str, str]) -> SquadQuestion:
    """Read a question; `seen` maps the ids so far to their places, and gets this one."""
    # Some published files have numbers as ids; other readers accept them.
    has_number = type(qa) is dict and type(qa.get("id")) is int
    question_id = str(_field(qa, "id", int if has_number else str, place))
    full_place = f"{place} ({question_id})"
    if question_id in seen:
        raise Refused(
            f"{full_place} has the id of {seen[question_id]}; predictions are stored by id: "
            "give each question its own"
        )
    seen[question_id] = place
    text = _field(qa, "question", str, full_place)
    if not has_answers or ("is_impossible" in qa and _field(qa, "is_impossible", bool, full_place)):
        return SquadQuestion(question_id, text, ())  # answers in the file are only plausible
    answers = tuple(
        Answer(
            _field(answer, "text", str, f"{full_place} answer {number}"),
            _field(answer, "answer_start", int, f"{full_place} answer {number}"),
        )
        for number, answer in enumerate(_field(qa, "answers", list, full_place), 1)
    )
    return SquadQuestion(question_id, text, answers)


def _field(record: Any, name: str, kind: type, place: str) -> Any:
    if type(record) is not dict:
        raise Refused(f"{place} is a JSON {type(record).__name__}, not an object; {_FORM}")
    if name not in record:
        raise Refused(f"{place} has no {name!r}; {_FORM}")
    if type(record[name]) is not kind:
        value = json.dumps(record[name])
        raise Refused(f"{place}: {name!r} is {value:.80}, not {small_files.name_kind(kind())}")
    if kind is str:
        small_files.check_unicode(record[name], name, place)
    return record[name]


def find_answer_span(context: str, answer: Answer) -> tuple[int, int] | None:
    """Find an answer in its context: first character, one after the last; None if not found.

    As in run_squad.py, the answer may begin elsewhere within the words at answer_start, and its
    white space may differ; beyond those words it is not searched for. Several places of it within
    them, as in a text without spaces, are told apart by answer_start: the nearest is taken.

    Source: run_squad.py@eedf5716ce read_squad_examples.
    """
    start, words = answer.answer_start, answer.text.split()
    end = start + len(answer.text)
    if not words or not 0 <= start < len(context):
        return None
    if context[start:end] == answer.text:
        return start, end
    while start > 0 and not context[start - 1].isspace():
        start -= 1
    while end < len(context) and not context[end].isspace():
        end += 1
    places = [
        (start + match.start(), start + match.end())
        for match in re.finditer(r"\s+".join(map(re.escape, words)), context[start:end])
    ]
    return min(places, key=lambda place: abs(place[0] - answer.answer_start), default=None)
