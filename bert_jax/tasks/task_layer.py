"""Describe what the outputs of a fine-tuned encoder's task layer mean, as JSON and back.

A run writes the description into its record (runtime/run_record.py), an export under `bert_jax` in
its config.json (interop/export.py). `from_json` reads both.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import settings_from
from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from data_pipeline.io import small_files
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.spec.fields import check_fields

KEY = "bert_jax"  # key in an export's config.json
_KINDS = (CLASSIFY, REGRESS, CHOOSE, SPAN, TAG)
# Options that matter only to the run that had them, on its machine.
_OF_THE_RUN = ("dir", "source", "train_file", "dev_file", "test_file", "train_examples")


@dataclasses.dataclass(frozen=True)
class TaskLayer:
    """Describe the outputs of a task layer."""

    name: str  # the task's name in its usual spelling
    kind: str  # a kind in bert_jax/tasks/task.py
    labels: tuple[str, ...]  # names of the classes by their ids; none for numbers and spans
    mean: float = 0.0  # predicted number at a logit of 0
    deviation: float = 1.0  # added to it by a logit of 1
    options: TaskOptions = dataclasses.field(
        default_factory=TaskOptions
    )  # the settings of its training
    # SQuAD 2.0: null odds above which a question gets no answer; None: the run chose none.
    null_threshold: float | None = None


def to_json(layer: TaskLayer) -> dict[str, Any]:
    """Return the description as an export keeps it, without paths of this machine."""
    options = dataclasses.asdict(layer.options)
    return {
        **dataclasses.asdict(layer),
        "labels": list(layer.labels),
        "options": {k: v for k, v in options.items() if k not in _OF_THE_RUN},
    }


def from_json(record: Mapping[str, Any], name: object) -> TaskLayer:
    """Build the description from the output of to_json; `name` names the file in DamagedFile."""
    kind = small_files.field(record, "kind", str, name)
    labels = small_files.field(record, "labels", list, name)
    if kind not in _KINDS:
        raise DamagedFile(f"{name}: 'kind' is {kind!r}; it must be one of {', '.join(_KINDS)}")
    if not all(isinstance(label, str) for label in labels):
        raise DamagedFile(f"{name}: 'labels' are {labels!r:.80}, not all of them strings")
    threshold = record.get("null_threshold")
    if threshold is not None:
        threshold = float(small_files.field(record, "null_threshold", float, name))
    return TaskLayer(
        name=small_files.field(record, "name", str, name),
        kind=kind,
        labels=tuple(labels),
        mean=float(small_files.field(record, "mean", float, name, 0.0)),
        deviation=float(small_files.field(record, "deviation", float, name, 1.0)),
        options=_read_options(small_files.field(record, "options", dict, name, {}), name),
        null_threshold=threshold,
    )


def _read_options(record: Mapping[str, Any], name: object) -> TaskOptions:
    """Build the options of a task from a parsed file; refuse what config.data would."""
    try:
        options = settings_from(TaskOptions, ConfigDict(dict(record)))
        check_fields(options, "options")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFile(f"{name} has options of a task that cannot be read: {error}") from None
    return options
