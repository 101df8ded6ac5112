"""The tasks by name, each opened on its files with a vocabulary."""

import dataclasses
from collections.abc import Callable

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks import codah, glue, ner, squad, swag, table
from bert_jax.tasks.task import Task
from data_pipeline.vocab import Vocabulary

Open = Callable[[TaskOptions, Vocabulary], Task]

# Name in config.data.task -> what opens it.
TASKS: dict[str, Open] = {
    **dict.fromkeys(glue.NAMES, glue.open_task),
    "swag": swag.open_task,
    "codah": codah.open_task,
    "ner": ner.open_task,
    "squad": squad.open_task,
    "table": table.open_task,
}


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """The task that config.data names.

    Raises:
      ValueError: there is none of this name, or its files are not as they should be.
    """
    if options.task not in TASKS:
        raise ValueError(f"config.data.task is {options.task!r}; it must be one of {sorted(TASKS)}")
    if options.source == "files" and not options.dir:
        raise ValueError(
            f"config.data.dir is missing: the folder with the files of {options.task}; give "
            "--config.data.dir=DIR"
        )
    task = TASKS[options.task](options, vocabulary)
    if options.train_examples:
        first = task.splits["train"].first(options.train_examples)
        task = dataclasses.replace(task, splits={**task.splits, "train": first})
    return task
