"""SWAG: which of four captions comes next; its csv files train.csv, val.csv and test.csv.

Segment 0 is sent1, segment 1 is sent2 and an ending: "He rides into the elevator." and "He" with
"looks at a mirror". Source: the paper's sentence A is the given sentence and B a possible
continuation; Hugging Face's run_swag.py makes the same rows.
"""

import csv
import pathlib

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks import multiple_choice, split_files
from bert_jax.tasks.multiple_choice import CHOICES, Question, QuestionFile
from bert_jax.tasks.task import Task
from bert_jax.tasks.tsv import decoded_lines, listed
from data_pipeline.vocab import Vocabulary

FILE_NAMES = {
    split_files.TRAIN: ("train.csv",),
    split_files.DEV: ("val.csv",),
    split_files.TEST: ("test.csv",),
}
_ENDINGS = [f"ending{number}" for number in range(CHOICES)]
COLUMNS = ("sent1", "sent2", *_ENDINGS)  # and label, which test.csv does not have


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read the files of config.data.dir.

    Raises:
      ValueError: a file is missing or wrong; file and row are named.
    """
    split_files.refuse_other_sources(options)
    files = split_files.read_splits(options, FILE_NAMES, read)
    return multiple_choice.task("SWAG", files, options, vocabulary)


def read(path: pathlib.Path) -> QuestionFile:
    """Read one of the files, by the names of its columns.

    Raises:
      ValueError: a column is missing, a line has more or fewer fields, quotes that do not close,
        an answer that is none, no questions.
    """
    reader = csv.reader((line for _, line in decoded_lines(path)), strict=True)
    try:
        header = next(reader, [])
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise ValueError(
                f"{path} has no column {', '.join(missing)}; its columns are "
                f"{listed(header)}, and those of SWAG's train.csv, val.csv and "
                f"test.csv (not of train_full.csv) are {', '.join(COLUMNS)} and label"
            )
        questions = []
        line = reader.line_num + 1
        for row in reader:
            if row:
                questions.append(_question(row, header, f"{path} row {line}"))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path} row {reader.line_num} is not csv: {error}; a field with a comma or a "
            "quotation mark stands in quotation marks, and such a mark in it is doubled"
        ) from error
    if not questions:
        raise ValueError(f"{path} has no questions below its names of columns")
    return QuestionFile(path, tuple(questions))


def _question(row: list[str], header: list[str], place: str) -> Question:
    if len(row) != len(header):
        raise ValueError(f"{place} has {len(row)} columns, where the first row names {len(header)}")
    field = dict(zip(header, row, strict=True))
    label = field.get("label")
    return Question(
        first=field["sent1"],
        seconds=tuple(f"{field['sent2']} {field[name]}" for name in _ENDINGS),
        answer=None if label is None else multiple_choice.answer_number(label, place),
    )
