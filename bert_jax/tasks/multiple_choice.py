"""Read SWAG and CODAH: questions with four endings to choose from, their accuracy and predictions.

A question is four rows, [CLS] context [SEP] ending [SEP]. The task's layer gives each row a number,
and the ending with the largest is the answer. Source: Devlin et al. 2019, section 4.4.

SWAG (train.csv, val.csv, test.csv): segment 0 is sent1; segment 1 is sent2 and an ending, "He" and
"looks at a mirror". Hugging Face's run_swag.py makes the same rows.
CODAH (tsv without a header; one fold or all): segment 0 is the whole prompt, "The chicken cannot
fly. It", and segment 1 an ending, as in the authors' version of run_swag.py. Quotation marks are
ordinary characters.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping

import numpy as np

from bert_jax.config.schema import TaskOptions
from bert_jax.tasks.encode import encode_texts
from bert_jax.tasks.files import DEV, TEST, TRAIN, csv_rows, read_columns, read_splits
from bert_jax.tasks.metrics import ACCURACY, class_scores, majority_scores
from bert_jax.tasks.task import CHOOSE, Example, Scores, Task
from data_pipeline.io.atomic import write_file
from data_pipeline.io.refused import Refused
from data_pipeline.labelled.rows import EncodedRows
from data_pipeline.vocab import Vocabulary

CHOICES = 4
ENDINGS = [f"ending{number}" for number in range(CHOICES)]
SWAG_COLUMNS = ("sent1", "sent2", *ENDINGS)  # label too, but not in test.csv
CODAH_COLUMNS = ("categories", "prompt", *ENDINGS, "answer")
_SWAG_FILES = {TRAIN: ("train.csv",), DEV: ("val.csv",), TEST: ("test.csv",)}
_CODAH_FILES = {  # the second names are those in data/cv_split/fold_N/
    split: (f"{split}.tsv", f"fold_0_{split}.tsv") for split in (TRAIN, DEV, TEST)
}


@dataclasses.dataclass(frozen=True)
class ChoiceQuestion:
    """Hold a context, four ways to continue it, and which of them is right."""

    context: str  # segment 0
    choices: tuple[str, ...]  # segment 1 of each row
    answer: int | None  # the index of the right choice; None: the file has no answers


@dataclasses.dataclass(frozen=True)
class ChoiceFile:
    """Hold the questions of a file; all have an answer, or none has."""

    path: pathlib.Path
    questions: tuple[ChoiceQuestion, ...]

    @property
    def has_answers(self) -> bool:
        """Return whether the file has a column of answers."""
        return self.questions[0].answer is not None

    @property
    def answers_N(self) -> np.ndarray:
        """Return the right choices of a file with answers, int32[N], counted from 0."""
        return np.array([question.answer for question in self.questions], np.int32)


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read the files of SWAG or CODAH, whichever config.data.task is, in config.data.dir."""
    names, read = (_SWAG_FILES, read_swag) if options.task == "swag" else (_CODAH_FILES, read_codah)
    return build_task(read_splits(options, names, read), options, vocabulary)


def read_swag(path: pathlib.Path) -> ChoiceFile:
    """Read a csv file of SWAG by the names of its columns."""
    questions = []
    how_to_fix = "give SWAG's train.csv, val.csv or test.csv, not train_full.csv"
    for number, row in csv_rows(path, SWAG_COLUMNS, how_to_fix):
        choices = tuple(f"{row['sent2']} {row[name]}" for name in ENDINGS)
        label = row.get("label")
        answer = None if label is None else _answer_index(label, f"{path} row {number}")
        questions.append(ChoiceQuestion(row["sent1"], choices, answer))
    if not questions:
        raise Refused(f"{path} has no questions below its header")
    return ChoiceFile(path, tuple(questions))


def read_codah(path: pathlib.Path) -> ChoiceFile:
    """Read a tsv file of CODAH, whose rows have seven columns."""
    columns = read_columns(path, CODAH_COLUMNS, header=CODAH_COLUMNS)
    values = columns.values
    endings = zip(*(values[name] for name in ENDINGS), strict=True)
    questions = [
        ChoiceQuestion(prompt, choices, _answer_index(answer, columns.place(number)))
        for number, (prompt, choices, answer) in enumerate(
            zip(values["prompt"], endings, values["answer"], strict=True)
        )
    ]
    return ChoiceFile(path, tuple(questions))


def _answer_index(text: str, place: str) -> int:
    if text.strip() not in set("0123"):
        raise Refused(
            f"{place} has the label {text!r:.60}; it must be the number of the right ending, 0, "
            "1, 2 or 3"
        )
    return int(text)


def build_task(
    files: Mapping[str, ChoiceFile], options: TaskOptions, vocabulary: Vocabulary
) -> Task:
    """Build the task of the files that were read; training and development need answers."""
    for split in (TRAIN, DEV):
        if not files[split].has_answers:
            raise Refused(
                f"{files[split].path} has no column of answers; as the {split} file of "
                f"{options.task} it needs one"
            )
    splits, notes = {}, []
    for split, file in files.items():
        splits[split], findings = encode_questions(split, file, vocabulary, options)
        notes += [f"{split} ({file.path.name}): {len(file.questions):,} questions", *findings]
    train_answers_N = files[TRAIN].answers_N
    return Task(
        name=options.task.upper(),
        kind=CHOOSE,
        classes=CHOICES,
        splits=splits,
        dev_splits=(DEV,),
        score=functools.partial(_score, files),
        main_score=ACCURACY,
        baseline=majority_scores([ACCURACY], train_answers_N, files[DEV].answers_N),
        write_predictions=functools.partial(_write_predictions, files),
        notes=(
            *notes,
            f"the baseline always chooses ending {np.bincount(train_answers_N).argmax()}, the most "
            "frequent answer of train; chance scores a quarter",
        ),
        example=_take_example(files[TRAIN].questions[0]),
    )


def _take_example(question: ChoiceQuestion) -> Example:
    answer = question.answer or 0
    return Example((question.context, question.choices[answer]), f"ending {answer}")


def encode_questions(
    split: str, file: ChoiceFile, vocabulary: Vocabulary, options: TaskOptions
) -> tuple[EncodedRows, list[str]]:
    """Encode a question as four rows; return the rows and notes on empty and truncated texts."""
    contexts = [question.context for question in file.questions for _ in range(CHOICES)]
    choices = [choice for question in file.questions for choice in question.choices]
    most = options.max_seq_length
    encoded = encode_texts(
        contexts, choices, vocabulary, most, pair_truncation=options.pair_truncation
    )
    labels = {"label_ids": file.answers_N} if file.has_answers else {}
    rows = dataclasses.replace(encoded.rows, labels=labels, rows_per_example=CHOICES)
    return rows, encoded.notes(split, most)


def _score(files: Mapping[str, ChoiceFile], split: str, logits_NC: np.ndarray) -> Scores:
    return class_scores([ACCURACY], files[split].answers_N, logits_NC.argmax(axis=-1))


def _write_predictions(
    files: Mapping[str, ChoiceFile], split: str, logits_NC: np.ndarray, folder: pathlib.Path
) -> list[pathlib.Path]:
    """Write a csv of question numbers (from 0) and chosen endings, as SWAG's authors do.

    Where the file has the answers, a third column `label` holds them.
    Source: rowanz/swagaf csv_predict.py@c0e2e8a.
    """
    file, path = files[split], folder / f"{split}.csv"
    columns = {"pred": logits_NC.argmax(axis=-1)}
    if file.has_answers:
        columns["label"] = file.answers_N
    lines = [",".join(["", *columns])]
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        lines.append(",".join(map(str, [number, *values])))
    write_file(path, ("\n".join(lines) + "\n").encode())
    return [path]


def read_accuracy(path: pathlib.Path) -> Scores:
    """Read a file of predictions with a column of answers and return its accuracy."""
    how_to_fix = (
        "predictions/dev.csv of a run of swag or codah has both; those of a test set without "
        "answers cannot be scored"
    )
    pairs = [
        [_answer_index(row[name], f"{path} row {number}") for name in ("pred", "label")]
        for number, row in csv_rows(path, ("pred", "label"), how_to_fix)
    ]
    if not pairs:
        raise Refused(f"{path} has no rows below its header")
    chosen_N, answers_N = np.array(pairs).T
    return class_scores([ACCURACY], answers_N, chosen_N)
