"""Predict the answers of questions in SQuAD's JSON, with or without answers of its own.

OUT.json has an answer for each id, as the official script scores it; OUT.nbest.json the best texts
with probabilities; of SQuAD 2.0 OUT.null_odds.json how much speaks for no answer.
"""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import TextIO

from bert_jax.tasks import squad_answers
from bert_jax.tasks.predicting import Asked, LogitsOf, check_ending, counted
from bert_jax.tasks.squad_files import Paragraph, stream_paragraphs
from bert_jax.tasks.squad_windows import make_windows
from data_pipeline.whole_file import check_new, whole_file

ENDINGS = (".json",)
_PIECE_QUESTIONS = 256
_PIECE_CHARS = 1 << 20  # of the contexts, each counted once


class PredictAnswers:
    """A file of questions to answer."""

    unit = "questions"

    def __init__(self, asked: Asked, output: pathlib.Path, show: Callable[[int], None]) -> None:
        """Go through the whole input.

        Raises:
          ValueError: a file that is not SQuAD's, a length that leaves no room for a context.
        """
        check_ending(output, ENDINGS, "SQuAD's answers")
        layer = asked.layer
        self._options = dataclasses.replace(layer.options, max_seq_length=asked.max_seq_length)
        least = self._options.max_query_length + 4
        if asked.max_seq_length < least:
            raise ValueError(
                f"--max_seq_length is {asked.max_seq_length}, which leaves no room for a context "
                f"beside a question of {least - 4} pieces; give {least} or more"
            )
        self._threshold, self._origin = _threshold(asked)
        self._files = [output, output.with_suffix(".nbest.json")]
        if self._threshold is not None:
            self._files.append(output.with_suffix(".null_odds.json"))
        for path in self._files:
            check_new(path, "--output")
        self._asked = asked
        self.total = self._several = self._cut = self._unanswered = 0
        for paragraph in stream_paragraphs(asked.path, has_answers=False):
            self.total += len(paragraph.questions)
            show(self.total)

    def run(self, output: pathlib.Path, logits_of: LogitsOf) -> list[pathlib.Path]:
        """Predict and write, as Predicting says."""
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(_object(path)) for path in self._files]
            done = 0
            for piece in _pieces(self._asked.path):
                done += sum(len(paragraph.questions) for paragraph in piece)
                if done > self.total:
                    break
                self._write(piece, writers, logits_of)
            if done != self.total:
                raise ValueError(f"{self._asked.path} was changed while it was read; start again")
        return self._files

    def _write(
        self, piece: list[Paragraph], writers: "list[Callable[[str, object], None]]", of: LogitsOf
    ) -> None:
        options = self._options
        made = make_windows(piece, self._asked.vocabulary, options, labelled=False)
        windows, findings = made
        self._several += len(findings.in_several_windows)
        self._cut += len(findings.cut)
        logits_RS2 = of(windows.rows, len(windows.questions))
        found = squad_answers.predictions(
            windows,
            logits_RS2,
            options.n_best_size,
            options.max_answer_length,
            options.n_best_size,
        )
        for question, one in zip(windows.questions, found, strict=True):
            documents = squad_answers.documents(one, options.n_best_size, self._threshold)
            self._unanswered += not documents[0]
            for write, document in zip(writers, documents, strict=False):
                write(question.id, document)

    def account(self) -> list[tuple[str, str]]:
        """Return what was found in the questions."""
        limit = self._asked.max_seq_length
        findings = {
            f"in_contexts_longer_than_a_row_of_{limit}": self._several,
            f"cut_to_{self._options.max_query_length}_pieces": self._cut,
        }
        rows = [("questions", counted(self.total, self.unit, **findings))]
        if self._threshold is not None:
            rows.append(
                (
                    "no answer",
                    f"to {self._unanswered:,}, whose null odds are above {self._threshold:.4g} "
                    f"({self._origin})",
                )
            )
        return rows


def _threshold(asked: Asked) -> tuple[float | None, str]:
    """Return the null odds above which no answer is given and who says so; None: all get one."""
    if asked.null_threshold is not None:
        return asked.null_threshold, "--null_threshold"
    if not asked.layer.options.has_unanswerable:
        return None, ""
    if asked.layer.null_threshold is not None:
        return asked.layer.null_threshold, "the run's choice on its development set"
    return 0.0, "the run has chosen none; --null_threshold sets another"


def _pieces(path: pathlib.Path) -> Iterator[list[Paragraph]]:
    """Yield paragraphs with at most so many questions; one with more comes several times."""
    waiting: list[Paragraph] = []
    questions = chars = 0
    for paragraph in stream_paragraphs(path, has_answers=False):
        for start in range(0, len(paragraph.questions), _PIECE_QUESTIONS):
            some = paragraph.questions[start : start + _PIECE_QUESTIONS]
            if waiting and (
                questions + len(some) > _PIECE_QUESTIONS
                or chars + len(paragraph.context) > _PIECE_CHARS
            ):
                yield waiting
                waiting, questions, chars = [], 0, 0
            waiting.append(Paragraph(paragraph.context, some))
            questions += len(some)
            chars += len(paragraph.context)
    if waiting:
        yield waiting


@contextlib.contextmanager
def _object(path: pathlib.Path) -> Iterator[Callable[[str, object], None]]:
    """Yield what writes a key and its value into a JSON object, which is whole at the end."""
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        yield _Members(file).write
        file.write("\n}\n")


class _Members:
    """The members of an object in a file, one after another."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._before = file, "{\n"

    def write(self, key: str, value: object) -> None:
        self._file.write(f"{self._before}    {json.dumps(key)}: {json.dumps(value)}")
        self._before = ",\n"
