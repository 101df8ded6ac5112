"""Find a task by its name and open it on its files with a vocabulary."""

import dataclasses
from collections.abc import Callable

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks import multiple_choice, table
from bert_jax.tasks.glue import task as glue
from bert_jax.tasks.ner import task as ner
from bert_jax.tasks.squad import task as squad
from bert_jax.tasks.task import Task
from data_pipeline.io import Refused
from data_pipeline.vocab import Vocabulary

# config.data.task -> the function that opens it.
TASKS: dict[str, Callable[[TaskOptions, Vocabulary], Task]] = {
    **dict.fromkeys(glue.NAMES, glue.open_task),
    "swag": multiple_choice.open_task,
    "codah": multiple_choice.open_task,
    "ner": ner.open_task,
    "squad": squad.open_task,
    "table": table.open_task,
}


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Open the task that config.data names.

    Raises:
      Refused: no task has this name, a file or column is missing, or a row cannot be read or
        learned: names the file and the row.
      OSError: a file cannot be read.
    """
    if options.task not in TASKS:
        raise Refused(f"config.data.task is {options.task!r}; it must be one of {', '.join(TASKS)}")
    if options.source == "files" and not options.dir:
        raise Refused(
            f"config.data.dir is missing: the folder with the files of {options.task}; give "
            "--config.data.dir=DIR, or for GLUE --config.data.source=tfds"
        )
    task = TASKS[options.task](options, vocabulary)
    if options.train_examples and options.task != "squad":  # SQuAD counts questions, not rows
        first = task.splits["train"].first(options.train_examples)
        task = dataclasses.replace(task, splits={**task.splits, "train": first})
    return task
