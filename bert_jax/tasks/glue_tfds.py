"""The examples of a GLUE task from TensorFlow Datasets, where one lies on this machine.

Nothing is downloaded. TFDS has the labels as numbers in an order of its own: they are read by name.
"""

from typing import Any

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks.glue_files import Examples
from bert_jax.tasks.glue_tasks import DIAGNOSTIC, TRAIN, GlueTask, SplitFile
from data_pipeline.files import driver_errors

_BATCH_EXAMPLES = 1024
_TEXTS = {"glue/mnli": ("premise", "hypothesis"), "glue/mrpc": ("sentence1", "sentence2")}
_DIAGNOSTIC_CONFIG = "glue/ax"


def read_tfds(
    task: GlueTask, options: TaskOptions, needs_diagnostic: bool = False
) -> dict[str, Examples]:
    """The examples of each split of glue/TASK, found where TFDS_DATA_DIR says; its last version.

    Raises:
      ValueError: it is not there, has not the splits of GLUE, or files were named as well.
    """
    if options.dir or options.train_file or options.dev_file or options.test_file:
        raise ValueError(
            "config.data.source is tfds, and config.data.dir or a file is set as well; TFDS looks "
            "where the environment variable TFDS_DATA_DIR says: leave them empty"
        )
    builder = _builder(task.tfds_config)
    columns = _TEXTS.get(task.tfds_config, (task.text, task.second))
    found = {}
    for file in (TRAIN, *task.dev, *task.test):
        found[file.split] = _split(task, builder, file, columns, is_labelled=file not in task.test)
    if task.name == "MNLI" and (needs_diagnostic or _is_there(_DIAGNOSTIC_CONFIG)):
        file = SplitFile(DIAGNOSTIC, "", "test")
        found[DIAGNOSTIC] = _split(task, _builder(_DIAGNOSTIC_CONFIG), file, columns, False)
    return found


def _split(
    task: GlueTask, builder: Any, file: SplitFile, columns: tuple[str, str], is_labelled: bool
) -> Examples:
    import tensorflow_datasets as tfds

    if file.tfds_split not in builder.info.splits:
        raise ValueError(
            f"{builder.data_path} has no split {file.tfds_split!r}; its splits are "
            f"{', '.join(builder.info.splits)}: prepare the data set of TFDS again"
        )
    texts, seconds, labels, indices = list[str](), list[str](), list[str](), list[str]()
    feature = builder.info.features["label"]
    stored = builder.as_dataset(split=file.tfds_split, shuffle_files=False)
    for batch in tfds.as_numpy(stored.batch(_BATCH_EXAMPLES)):
        texts += [text.decode() for text in batch[columns[0]]]
        if columns[1]:
            seconds += [text.decode() for text in batch[columns[1]]]
        indices += [str(index) for index in batch["idx"]]
        if is_labelled and task.labels and not task.labels[0].isdigit():
            labels += [feature.int2str(int(label)) for label in batch["label"]]
        elif is_labelled:
            labels += [str(label) for label in batch["label"]]
    # TFDS shuffles when it prepares; the leaderboard wants rows by their index.
    order = list(range(len(texts)))
    if not is_labelled:
        order.sort(key=lambda i: int(indices[i]))
    return Examples(
        texts=[texts[i] for i in order],
        second_texts=[seconds[i] for i in order] if columns[1] else None,
        labels=labels if is_labelled else None,
        indices=[indices[i] for i in order],
        place=lambda i: f"{builder.data_path} split {file.tfds_split} example {i + 1}",
    )


def _is_there(config: str) -> bool:
    try:
        _builder(config)
    except ValueError:
        return False
    return True


def _builder(config: str) -> Any:
    """What TFDS knows of a data set from its files."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import constants, read_only_builder

    try:
        with driver_errors(str(constants.DATA_DIR)):
            return read_only_builder.builder_from_files(config)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise ValueError(
            f"config.data.source is tfds, and {config} is not among the data sets in "
            f"{constants.DATA_DIR}; name the folder by TFDS_DATA_DIR, or make it there first "
            '(nothing is downloaded here), as in: python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{config}').download_and_prepare()\""
        ) from error
