"""The files of a task's splits: found under the names that they are published with, and read."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bert_jax.finetune_config import TaskOptions

Read = TypeVar("Read")
TRAIN, DEV, TEST = "train", "dev", "test"


def split_file(options: TaskOptions, split: str, names: Sequence[str]) -> pathlib.Path | None:
    """The file of a split in the task's folder; None where there is no test file.

    Raises:
      ValueError: no folder, no file for training or development, or several that could be it.
    """
    key = f"config.data.{split}_file"
    given = {TRAIN: options.train_file, DEV: options.dev_file, TEST: options.test_file}[split]
    folder = pathlib.Path(options.dir).expanduser()
    if not options.dir or not folder.is_dir():
        raise ValueError(
            f"config.data.dir is {options.dir!r}, which is not a folder; give the one that the "
            f"files of {options.task} lie in, --config.data.dir=DIR"
        )
    if given:
        if not (folder / given).is_file():
            raise ValueError(f"{key} is {given!r}, but there is no file {folder / given}")
        return folder / given
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise ValueError(
            f"{folder} holds both {found[0].name} and {found[1].name}; say which one to take with "
            f"--{key}=NAME"
        )
    if not found and split != TEST:
        raise ValueError(
            f"{folder} has no {split} file of {options.task}: none of {', '.join(names)}; name "
            f"yours with --{key}=NAME"
        )
    return found[0] if found else None


def read_splits(
    options: TaskOptions,
    file_names: Mapping[str, Sequence[str]],
    read: Callable[[pathlib.Path], Read],
) -> dict[str, Read]:
    """What `read` gives of the file of each split that there is.

    Raises:
      ValueError: as of split_file, and whatever read refuses.
    """
    paths = {split: split_file(options, split, names) for split, names in file_names.items()}
    return {split: read(path) for split, path in paths.items() if path is not None}


def refuse_other_sources(options: TaskOptions) -> None:
    """Refuse data sets of TensorFlow Datasets, which a task that has files alone does not read."""
    if options.source != "files":
        raise ValueError(
            f"config.data.source is {options.source!r}, but {options.task} is read from files "
            "alone; leave it at 'files'"
        )
