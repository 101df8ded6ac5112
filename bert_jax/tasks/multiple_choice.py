"""Questions with four endings to choose from: rows, accuracy and predictions of SWAG and CODAH.

A question is four rows: [CLS] what comes before [SEP] an ending [SEP]. The layer gives each row a
number, and the largest is the answer. Source: Devlin et al. 2019, section 4.4.
"""

import csv
import dataclasses
import functools
import io
import pathlib
from collections.abc import Mapping

import numpy as np

from bert_jax.finetune_config import TaskOptions
from bert_jax.record_files import write_whole
from bert_jax.tasks import split_files
from bert_jax.tasks.label_scores import ACCURACY, class_scores, majority_scores
from bert_jax.tasks.task import CHOOSE, Scores, Task
from bert_jax.tasks.text_rows import text_rows
from bert_jax.tasks.tsv import decoded_lines
from data_pipeline.finetune import EncodedRows
from data_pipeline.vocab import Vocabulary

CHOICES = 4


@dataclasses.dataclass(frozen=True)
class Question:
    """What comes before, four ways to go on, and which of them is right."""

    first: str  # segment 0
    seconds: tuple[str, ...]  # segment 1 of each choice
    answer: int | None  # from 0; None where the file does not tell


@dataclasses.dataclass(frozen=True)
class QuestionFile:
    """The questions of a file; all have an answer, or none has."""

    path: pathlib.Path
    questions: tuple[Question, ...]

    @property
    def answers_N(self) -> np.ndarray | None:
        """int32[N] from 0, if the file tells them."""
        if self.questions[0].answer is None:
            return None
        return np.array([question.answer for question in self.questions], np.int32)


def answer_number(text: str, place: str) -> int:
    """The number of the right ending as it stands at a place of a file.

    Raises:
      ValueError: it is not 0, 1, 2 or 3.
    """
    if text.strip() not in set("0123"):
        raise ValueError(
            f"{place} has the label {text!r:.60}; it must be the number of the right ending, 0, "
            "1, 2 or 3"
        )
    return int(text)


def task(
    name: str,
    files: Mapping[str, QuestionFile],
    options: TaskOptions,
    vocabulary: Vocabulary,
) -> Task:
    """The task of files that are read.

    Raises:
      ValueError: the training or development file has no answers.
    """
    for split in (split_files.TRAIN, split_files.DEV):
        if files[split].answers_N is None:
            raise ValueError(
                f"{files[split].path} has no column of answers; as the {split} file of "
                f"{options.task} it needs one"
            )
    splits, notes = {}, []
    for split, file in files.items():
        splits[split], found = question_rows(split, file, vocabulary, options.max_seq_length)
        notes += [f"{split} ({file.path.name}): {len(file.questions):,} questions", *found]
    train_answers_N = _answers(files[split_files.TRAIN])
    return Task(
        name=name,
        kind=CHOOSE,
        classes=CHOICES,
        splits=splits,
        dev_splits=(split_files.DEV,),
        score=functools.partial(_score, files),
        main_score=ACCURACY,
        baseline=majority_scores([ACCURACY], train_answers_N, _answers(files[split_files.DEV])),
        write_predictions=functools.partial(_write_predictions, files),
        notes=(
            *notes,
            f"the baseline always takes ending {np.bincount(train_answers_N).argmax()}, the "
            "commonest answer of train; chance takes a quarter",
        ),
    )


def question_rows(
    split: str, file: QuestionFile, vocabulary: Vocabulary, max_seq_length: int
) -> tuple[EncodedRows, list[str]]:
    """Four rows a question, and what was seen in making them."""
    firsts = [question.first for question in file.questions for _ in range(CHOICES)]
    seconds = [second for question in file.questions for second in question.seconds]
    made = text_rows(firsts, seconds, vocabulary, max_seq_length)
    labels = {} if file.answers_N is None else {"label_ids": file.answers_N}
    rows = dataclasses.replace(made.rows, labels=labels, rows_per_example=CHOICES)
    return rows, made.notes(split, max_seq_length)


def _answers(file: QuestionFile) -> np.ndarray:
    answers_N = file.answers_N
    if answers_N is None:
        raise ValueError(f"{file.path} has no column of answers, so that nothing can be scored")
    return answers_N


def _score(files: Mapping[str, QuestionFile], split: str, logits_NC: np.ndarray) -> Scores:
    return class_scores([ACCURACY], _answers(files[split]), logits_NC.argmax(axis=-1))


def _write_predictions(
    files: Mapping[str, QuestionFile], split: str, logits_NC: np.ndarray, folder: pathlib.Path
) -> list[pathlib.Path]:
    """A csv of the questions' numbers from 0 and the endings chosen, as the authors' script's.

    Where the file tells the answers they stand in a third column, `label`.
    Source: rowanz/swagaf csv_predict.py@c0e2e8a.
    """
    path = folder / f"{split}.csv"
    answers_N = files[split].answers_N
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", "pred"] + ["label"] * (answers_N is not None))
    for number, choice in enumerate(logits_NC.argmax(axis=-1)):
        told = [] if answers_N is None else [answers_N[number]]
        writer.writerow([number, choice, *told])
    write_whole(path, text.getvalue().encode())
    return [path]


def read_accuracy(path: pathlib.Path) -> Scores:
    """The accuracy that a file of predictions with the answers in it comes to.

    Raises:
      ValueError: it has no column of answers, or no rows.
    """
    reader = csv.DictReader((line for _, line in decoded_lines(path)), strict=True)
    try:
        return _accuracy(path, reader)
    except csv.Error as error:
        raise ValueError(f"{path} row {reader.line_num} is not csv: {error}") from error


def _accuracy(path: pathlib.Path, reader: "csv.DictReader[str]") -> Scores:
    missing = {"pred", "label"} - set(reader.fieldnames or ())
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(sorted(missing))}; a file to score has both, as "
            "predictions/dev.csv of a run of swag or codah: a test set without answers has not"
        )
    pairs = [
        [answer_number(row[name] or "", f"{path} row {number}") for name in ("pred", "label")]
        for number, row in enumerate(reader, 2)
    ]
    if not pairs:
        raise ValueError(f"{path} has no rows below its names of columns")
    chosen_N, answers_N = np.array(pairs).T
    return class_scores([ACCURACY], answers_N, chosen_N)
