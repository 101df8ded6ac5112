"""CODAH: which of four endings makes sense; its tsv files, of one fold or all of them.

Seven columns without names: categories, prompt, four endings, the number of the right one.
Segment 0 is the whole prompt, "The chicken cannot fly. It", and segment 1 an ending: the authors
rewrote run_swag.py so for their BERT. Quotation marks mean nothing.
"""

import pathlib

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks import multiple_choice, split_files
from bert_jax.tasks.multiple_choice import CHOICES, Question, QuestionFile
from bert_jax.tasks.task import Task
from bert_jax.tasks.tsv import read_columns
from data_pipeline.vocab import Vocabulary

# data/cv_split/fold_N/ has the first ones.
FILE_NAMES = {
    split_files.TRAIN: ("train.tsv", "fold_0_train.tsv"),
    split_files.DEV: ("dev.tsv", "fold_0_dev.tsv"),
    split_files.TEST: ("test.tsv", "fold_0_test.tsv"),
}
_ENDINGS = [f"ending{number}" for number in range(CHOICES)]
COLUMNS = ("categories", "prompt", *_ENDINGS, "answer")


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read the files of config.data.dir.

    Raises:
      ValueError: a file is missing or wrong; file and row are named.
    """
    split_files.refuse_other_sources(options)
    files = split_files.read_splits(options, FILE_NAMES, read)
    return multiple_choice.task("CODAH", files, options, vocabulary)


def read(path: pathlib.Path) -> QuestionFile:
    """Read one of the files.

    Raises:
      ValueError: a row of more or fewer columns, an answer that is none, no questions.
    """
    columns = read_columns(path, COLUMNS, header=COLUMNS)
    values = columns.values
    endings = zip(*(values[name] for name in _ENDINGS), strict=True)
    questions = [
        Question(prompt, seconds, multiple_choice.answer_number(answer, columns.place(number)))
        for number, (prompt, seconds, answer) in enumerate(
            zip(values["prompt"], endings, values["answer"], strict=True)
        )
    ]
    return QuestionFile(path, tuple(questions))
