"""Load a fine-tuned model with what its layer means: of a run, of an export, of somebody else.

A run and an export of ours say it themselves. Of another folder of Hugging Face's the class in
config.json says it, and id2label the labels.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax import hf, pretrained, task_layer
from bert_jax.finetune_config import TaskOptions
from bert_jax.pretrained import Pretrained
from bert_jax.task_layer import TaskLayer
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

_KINDS = {
    "ForSequenceClassification": CLASSIFY,
    "ForTokenClassification": TAG,
    "ForQuestionAnswering": SPAN,
    "ForMultipleChoice": CHOOSE,
}
_LONGEST = 512  # tokens of a row of somebody else's model, where it has more positions
_LONGEST_SPAN = 384  # source: run_squad.py@eedf5716ce


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """A model with the layer of a task."""

    checkpoint: Pretrained
    layer: TaskLayer


def load(address: str) -> FineTuned:
    """Read a fine-tuned model and what its outputs mean.

    Raises:
      ValueError: there is none, or it was not fine-tuned, or its files contradict each other.
      OSError: a disk or a bucket refuses.
    """
    checkpoint = pretrained.load(address)
    layer = checkpoint.task
    scheme, place = pretrained.split(address)
    if scheme == pretrained.HF and checkpoint.heads.classes:
        layer = _of_export(pathlib.Path(place), checkpoint)
    if layer is None or not checkpoint.heads.classes:
        raise ValueError(
            f"{address} is not a fine-tuned model: it has no layer of a task; make one with "
            "python -m bert_jax.finetune --config=configs/finetune/table.py (or glue.py, ner.py, "
            f"squad.py, swag.py) --config.init={address} --config.data.dir=DIR --workdir=WORKDIR"
        )
    _check(checkpoint, layer)
    return FineTuned(checkpoint, layer)


def _check(checkpoint: Pretrained, layer: TaskLayer) -> None:
    """Raise if the layer has another width than its labels, or reads a missing pooler."""
    width = checkpoint.heads.classes
    wanted = {REGRESS: 1, CHOOSE: 1, SPAN: 2}.get(layer.kind, len(layer.labels))
    if width != wanted:
        raise ValueError(
            f"{checkpoint.address}: the layer of the task ({layer.kind}) gives {width} numbers, "
            f"and {wanted} are named; put the config.json back that it came with"
        )
    if len(set(layer.labels)) < len(layer.labels):
        raise ValueError(f"{checkpoint.address} has two labels of one name: {layer.labels!r:.80}")
    if layer.kind in (CLASSIFY, REGRESS, CHOOSE) and "pooler" not in checkpoint.params:
        raise ValueError(
            f"{checkpoint.address} has no pooler, which its layer reads; export it again with one"
        )


def _of_export(folder: pathlib.Path, checkpoint: Pretrained) -> TaskLayer:
    """Read what config.json says of the layer.

    Raises:
      ValueError: it says nothing of a task, or of one that is not computed here.
    """
    path = folder / hf.CONFIG
    shown = small_files.read_object(path)
    if task_layer.KEY in shown:
        ours = small_files.field(shown, task_layer.KEY, dict, path)
        layer = task_layer.from_json(ours, path)
        # The export's layer gives the numbers themselves.
        return dataclasses.replace(layer, mean=0.0, deviation=1.0)
    named = small_files.field(shown, "architectures", list, path, [])
    kinds = [kind for end, kind in _KINDS.items() if str(named[:1]).endswith(f"{end}']")]
    if not kinds:
        raise ValueError(
            f"{path} says architectures = {named!r:.80}, which names no layer of a task; they are "
            f"Bert{', Bert'.join(_KINDS)}"
        )
    return _of_others(path, shown, kinds[0], checkpoint)


def _of_others(
    path: pathlib.Path, shown: Mapping[str, Any], kind: str, checkpoint: Pretrained
) -> TaskLayer:
    problem = shown.get("problem_type")
    classes = checkpoint.heads.classes
    if kind == CLASSIFY and problem == "multi_label_classification":
        raise ValueError(
            f"{path} says problem_type = {problem!r}: several labels a row, which is not computed "
            "here; give a model of one label a row"
        )
    # Source: BertForSequenceClassification.forward@transformers 4.57.
    if kind == CLASSIFY and (problem == "regression" or (problem is None and classes == 1)):
        kind = REGRESS
    positions = checkpoint.config.max_position_embeddings
    longest = min(positions, _LONGEST_SPAN if kind == SPAN else _LONGEST)
    labels = _labels(path, shown, classes) if kind in (CLASSIFY, TAG) else ()
    return TaskLayer(path.parent.name, kind, labels, options=TaskOptions(max_seq_length=longest))


def _labels(path: pathlib.Path, shown: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """Read id2label; without it classes are called as transformers calls them."""
    unnamed = {str(number): f"LABEL_{number}" for number in range(classes)}
    by_id = small_files.field(shown, "id2label", dict, path, unnamed)
    try:
        return tuple(str(by_id[str(number)]) for number in range(len(by_id)))
    except KeyError as error:
        raise DamagedFile(
            f"{path}: 'id2label' has no label {error.args[0]}; its keys must be 0, 1, 2, ..."
        ) from None
