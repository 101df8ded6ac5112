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
from collections.abc import Collection, Mapping

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.encode import encode_texts
from bert_jax.tasks.files import CSV, DEV, TEST, TRAIN, TSV, Columns, read_columns, read_splits
from bert_jax.tasks.metrics import ACCURACY, make_constant_logits, score_classes, score_logits
from bert_jax.tasks.task import CHOOSE, Example, Scores, Task
from data_pipeline.io import Refused
from data_pipeline.vocab import Vocabulary

CHOICES = 4
ENDINGS = [f"ending{number}" for number in range(CHOICES)]
_FIFTH_ENDING = f"ending{CHOICES}"
SWAG_COLUMNS = ("sent1", "sent2", *ENDINGS)  # label too, but not in test.csv
CODAH_COLUMNS = ("categories", "prompt", *ENDINGS, "answer")
_SWAG_FILES = {TRAIN: ("train.csv",), DEV: ("val.csv",), TEST: ("test.csv",)}
_CODAH_FILES = {  # the second names are those in data/cv_split/fold_N/
    split: (f"{split}.tsv", f"fold_0_{split}.tsv") for split in (TRAIN, DEV, TEST)
}


@dataclasses.dataclass(frozen=True)
class ChoiceFile:
    """Hold the texts of a file, four rows per question, and its right choices."""

    path: pathlib.Path
    contexts: list[str]  # segment 0 of each row
    choices: list[str]  # segment 1 of each row
    answers_N: np.ndarray | None  # int32, from 0; None: the file has no answers

    @property
    def questions(self) -> int:
        """Count the questions."""
        return len(self.contexts) // CHOICES


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read the files of SWAG or CODAH, whichever config.data.task is, in config.data.dir."""
    names, read = (_SWAG_FILES, read_swag) if options.task == "swag" else (_CODAH_FILES, read_codah)
    files = read_splits(options, names, lambda path, split: read(path))
    return build_task(files, options, vocabulary)


def read_swag(path: pathlib.Path) -> ChoiceFile:
    """Read a csv file of SWAG by the names of its columns."""
    how_to_fix = "give SWAG's train.csv, val.csv or test.csv, not train_full.csv"
    also = ("label", _FIFTH_ENDING)
    columns = read_columns(path, SWAG_COLUMNS, how_to_fix, suffix=CSV, also=also)
    refuse_more_endings(path, columns.values)
    answers_N = _read_answers(columns, "label") if "label" in columns.values else None
    return ChoiceFile(path, *lay_out(columns.values), answers_N)


def refuse_more_endings(path: pathlib.Path, names: Collection[str]) -> None:
    """Refuse a table with a column for a fifth ending, which would be left out."""
    if _FIFTH_ENDING in names:
        raise Refused(
            f"{path} has a column {_FIFTH_ENDING!r}, and a question has {CHOICES} endings; keep "
            f"{', '.join(ENDINGS)} and the questions whose right ending is among them"
        )


def read_codah(path: pathlib.Path) -> ChoiceFile:
    """Read a tsv file of CODAH, whose rows have seven columns."""
    how_to_fix = f"give a file of CODAH, whose rows have {len(CODAH_COLUMNS)} fields"
    columns = read_columns(path, CODAH_COLUMNS, how_to_fix, suffix=TSV, headers=[CODAH_COLUMNS])
    return ChoiceFile(path, *lay_out(columns.values), _read_answers(columns, "answer"))


def lay_out(columns: Mapping[str, list[str]]) -> tuple[list[str], list[str]]:
    """Return both texts of the four rows of each question; in SWAG, sent2 begins each ending."""
    contexts = columns.get("prompt") or columns["sent1"]
    begun = [f"{text} " for text in columns.get("sent2", [])] or [""] * len(contexts)
    endings = zip(*(columns[name] for name in ENDINGS), strict=True)
    choices = [
        start + ending for start, four in zip(begun, endings, strict=True) for ending in four
    ]
    return [context for context in contexts for _ in range(CHOICES)], choices


def _read_answers(columns: Columns, name: str) -> np.ndarray:
    """Read the numbers of the right endings from a column: int32[N]."""
    for index, text in enumerate(columns.values[name]):
        if text.strip() not in set("0123"):
            raise Refused(
                f"{columns.place(index)} has the label {text!r:.60}; it must be the number of the "
                "right ending, 0, 1, 2 or 3; remove the column 'label' from a test.csv without "
                "answers"
            )
    return np.array([int(text) for text in columns.values[name]], np.int32)


def build_task(
    files: Mapping[str, ChoiceFile], options: TaskOptions, vocabulary: Vocabulary
) -> Task:
    """Build the task of the files that were read; training and development need answers."""
    for split in (TRAIN, DEV):
        if files[split].answers_N is None:
            raise Refused(
                f"{files[split].path} has no column of answers; as the {split} file of "
                f"{options.task} it needs one"
            )
    splits, notes = {}, []
    for split, file in files.items():
        encoded = encode_texts(file.contexts, file.choices, vocabulary, options)
        labels = {} if file.answers_N is None else {"label_ids": file.answers_N}
        splits[split] = dataclasses.replace(encoded.rows, labels=labels, rows_per_example=CHOICES)
        notes.append(f"{split} ({file.path.name}): {file.questions:,} questions")
        notes += encoded.notes(split, options.max_seq_length)

    def score(split: str, logits_NC: np.ndarray) -> Scores:
        return score_logits([ACCURACY], splits[split].labels["label_ids"], logits_NC)

    train, train_answers_N = files[TRAIN], splits[TRAIN].labels["label_ids"]
    answer = int(train_answers_N[0])
    constant = make_constant_logits(train_answers_N, CHOICES, splits[DEV].examples)
    return Task(
        name=options.task.upper(),
        kind=CHOOSE,
        classes=CHOICES,
        splits=splits,
        dev_splits=(DEV,),
        score=score,
        main_score=ACCURACY,
        baseline=score(DEV, constant),
        format_predictions=functools.partial(_format_predictions, files),
        notes=(
            *notes,
            f"the baseline always chooses ending {np.bincount(train_answers_N).argmax()}, the most "
            "frequent answer of train; chance scores a quarter",
        ),
        example=Example((train.contexts[0], train.choices[answer]), f"ending {answer}"),
    )


def _format_predictions(
    files: Mapping[str, ChoiceFile], split: str, logits_NC: np.ndarray
) -> dict[str, str]:
    """Format a csv of question numbers (from 0) and chosen endings, as SWAG's authors do.

    Where the file has the answers, a third column `label` holds them.
    Source: rowanz/swagaf csv_predict.py@c0e2e8a.
    """
    columns = {"pred": logits_NC.argmax(axis=-1)}
    if (answers_N := files[split].answers_N) is not None:
        columns["label"] = answers_N
    rows = [["", *columns], *zip(range(len(logits_NC)), *columns.values(), strict=True)]
    return {f"{split}.csv": "".join(",".join(map(str, row)) + "\n" for row in rows)}


def read_accuracy(path: pathlib.Path) -> Scores:
    """Read a file of predictions with a column of answers and return its accuracy."""
    how_to_fix = (
        "predictions/dev.csv of a run of swag or codah has both; predictions for a test set "
        "without answers cannot be scored"
    )
    columns = read_columns(path, ("pred", "label"), how_to_fix, suffix=CSV)
    chosen_N, answers_N = (_read_answers(columns, name) for name in columns.values)
    return score_classes([ACCURACY], answers_N, chosen_N)
