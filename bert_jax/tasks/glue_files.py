"""The examples of a GLUE task from its tsv files, found under their published names."""

import dataclasses
import pathlib
from collections.abc import Callable

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks.glue_tasks import (
    DIAGNOSTIC,
    DIAGNOSTIC_FILES,
    DIAGNOSTIC_FOLDER,
    DIAGNOSTIC_LABELLED,
    TRAIN,
    GlueTask,
    SplitFile,
)
from bert_jax.tasks.tsv import Columns, read_columns


@dataclasses.dataclass(frozen=True)
class Examples:
    """A split as text."""

    texts: list[str]
    second_texts: list[str] | None  # None: single sentences
    labels: list[str] | None  # as they stand in files; None: a test set
    indices: list[str]  # that predictions are numbered by
    place: Callable[[int], str]  # where an example stands, for a message
    short_rows: tuple[int, ...] = ()  # numbers of rows left out of the file

    def first(self, count: int) -> "Examples":
        """The first so many."""
        return dataclasses.replace(
            self,
            texts=self.texts[:count],
            second_texts=None if self.second_texts is None else self.second_texts[:count],
            labels=None if self.labels is None else self.labels[:count],
            indices=self.indices[:count],
        )


def read_files(
    task: GlueTask, options: TaskOptions, needs_diagnostic: bool = False
) -> dict[str, Examples]:
    """The examples of each split; test sets and the diagnostic sets only where their files are.

    Raises:
      ValueError: no such folder or file, or what tsv.read_columns refuses in one.
    """
    folder = _folder(task, options)
    found = {
        file.split: _split(task, path, file, is_labelled)
        for file, path, is_labelled, is_needed in _files(task, folder, options)
        if is_needed or path.is_file()
    }
    if task.name == "MNLI":
        found |= _diagnostic(task, folder, needs_diagnostic)
    return found


def _folder(task: GlueTask, options: TaskOptions) -> pathlib.Path:
    """options.dir, or the folder of the task in it: the one where the training file lies."""
    if not options.dir:
        raise ValueError(
            f"config.data.dir is empty; it must be the folder of {task.name}'s tsv files, or one "
            f"that has them in {task.name}/ (or set config.data.source=tfds)"
        )
    folder = pathlib.Path(options.dir).expanduser()
    name = options.train_file or TRAIN.file
    for place in (folder, folder / task.name):
        if (place / name).is_file():
            return place
    raise ValueError(
        f"config.data.dir is {options.dir}, and there is no {folder / name} and no "
        f"{folder / task.name / name}; give the folder that GLUE's {task.name} was unpacked to"
    )


def _files(
    task: GlueTask, folder: pathlib.Path, options: TaskOptions
) -> list[tuple[SplitFile, pathlib.Path, bool, bool]]:
    """Each set, its file, whether it has labels and whether it has to be there."""
    files = [(TRAIN, folder / (options.train_file or TRAIN.file), True, True)]
    for sets, other, is_dev in (
        (task.dev, options.dev_file, True),
        (task.test, options.test_file, False),
    ):
        for number, file in enumerate(sets):
            is_given = number == 0 and bool(other)
            path = folder / (other if is_given else file.file)
            files.append((file, path, is_dev, is_dev or is_given))
    return files


def _split(task: GlueTask, path: pathlib.Path, file: SplitFile, is_labelled: bool) -> Examples:
    if not path.is_file():
        raise ValueError(
            f"{path} is missing, the {file.split} set of {task.name}; copy it there, or name "
            "another file of that folder (config.data.dev_file, test_file)"
        )
    texts = [task.text, task.second] if task.second else [task.text]
    columns = read_columns(
        path,
        [*texts, task.label] if is_labelled else texts,
        header=task.header if is_labelled else (),
        also=[task.index],
        drops_short_rows=task.drops_short_rows and file is TRAIN,
    )
    return _examples(columns, task.text, task.second, task.label if is_labelled else "", task.index)


def _diagnostic(task: GlueTask, folder: pathlib.Path, is_needed: bool) -> dict[str, Examples]:
    """What there is of the diagnostic set: in the task's folder, within it or beside it."""
    places = (folder / DIAGNOSTIC_FOLDER, folder.parent / DIAGNOSTIC_FOLDER, folder)
    found = {}
    for split, name in DIAGNOSTIC_FILES.items():
        path = next((place / name for place in places if (place / name).is_file()), None)
        if path is None:
            continue
        if split == DIAGNOSTIC_LABELLED:
            columns = read_columns(path, ["Premise", "Hypothesis", "Label"])
            found[split] = _examples(columns, "Premise", "Hypothesis", "Label", "")
        else:
            columns = read_columns(path, [task.text, task.second], also=[task.index])
            found[split] = _examples(columns, task.text, task.second, "", task.index)
    if is_needed and DIAGNOSTIC not in found:
        raise ValueError(
            f"{places[1] / DIAGNOSTIC_FILES[DIAGNOSTIC]} is missing, the diagnostic set that the "
            "task ax asks for; copy it there, or take the task mnli"
        )
    return found


def _examples(columns: Columns, text: str, second: str, label: str, index: str) -> Examples:
    counted = [str(number) for number in range(len(columns))]
    return Examples(
        texts=columns.values[text],
        second_texts=columns.values[second] if second else None,
        labels=columns.values[label] if label else None,
        indices=columns.values.get(index, counted),
        place=columns.place,
        short_rows=columns.short_rows,
    )
