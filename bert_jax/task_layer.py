"""The layer on top of a fine-tuned encoder: what its outputs mean, in a run's record and an export.

A run writes it into its record (receipt.py), an export into `bert_jax` of its config.json
(hf_export.py). Both are read back by `from_json`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import settings_from
from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

KEY = "bert_jax"  # in the config.json of an export
_KINDS = (CLASSIFY, REGRESS, CHOOSE, SPAN, TAG)
# Options that mean something only on the machine and to the run that had them.
_OF_THE_RUN = ("dir", "source", "train_file", "dev_file", "test_file", "train_examples")


@dataclasses.dataclass(frozen=True)
class TaskLayer:
    """What the layer on top of a fine-tuned encoder means."""

    name: str  # of the task, as people write it
    kind: str  # of bert_jax/tasks/task.py
    labels: tuple[str, ...]  # by their ids; none where its numbers are no classes
    mean: float = 0.0  # of a number that is predicted: what a logit of 0 means
    deviation: float = 1.0  # and how much one more is
    options: TaskOptions = dataclasses.field(default_factory=TaskOptions)  # of its training
    # Of SQuAD 2.0: null odds above which a question gets no answer; None: the run named none.
    null_threshold: float | None = None


def to_json(layer: TaskLayer) -> dict[str, Any]:
    """Return what an export says of its layer, without the paths of this machine."""
    options = dataclasses.asdict(layer.options)
    return {
        **dataclasses.asdict(layer),
        "labels": list(layer.labels),
        "options": {k: v for k, v in options.items() if k not in _OF_THE_RUN},
    }


def from_json(shown: Mapping[str, Any], name: object) -> TaskLayer:
    """Build the layer from what to_json gave; `name` is the file's, for errors.

    Raises:
      DamagedFile: a key is missing, or its value is of another type.
    """
    kind = small_files.field(shown, "kind", str, name)
    labels = small_files.field(shown, "labels", list, name)
    if kind not in _KINDS:
        raise DamagedFile(f"{name}: 'kind' is {kind!r}; it must be one of {', '.join(_KINDS)}")
    if not all(isinstance(label, str) for label in labels):
        raise DamagedFile(f"{name}: 'labels' are {labels!r:.80}, not all of them strings")
    threshold = shown.get("null_threshold")
    if threshold is not None:
        threshold = float(small_files.field(shown, "null_threshold", float, name))
    return TaskLayer(
        name=small_files.field(shown, "name", str, name),
        kind=kind,
        labels=tuple(labels),
        mean=float(small_files.field(shown, "mean", float, name, 0.0)),
        deviation=float(small_files.field(shown, "deviation", float, name, 1.0)),
        options=options_from(small_files.field(shown, "options", dict, name, {}), name),
        null_threshold=threshold,
    )


def options_from(shown: Mapping[str, Any], name: object) -> TaskOptions:
    """Build the options of a task from a parsed file.

    Raises:
      DamagedFile: an unknown option, or a value of another type.
    """
    try:
        return settings_from(TaskOptions, ConfigDict(dict(shown)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFile(f"{name} has options of a task that cannot be read: {error}") from None
