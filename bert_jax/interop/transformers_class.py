"""Choose the class of transformers that computes a checkpoint, and name its arrays."""

import dataclasses
import functools
from collections.abc import Callable

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.interop import vocabulary
from bert_jax.interop.families import FAMILIES, Family, find_family
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tensor_names import TensorName, nest
from bert_jax.tasks.task import SPAN, TAG
from data_pipeline.io import Refused


def check_supported(checkpoint: Pretrained) -> None:
    """Raise if no class of transformers computes a model and its heads.

    Raises:
      Refused: names the checkpoint and what there is no class for.
    """
    family, config, task = require_family(checkpoint), checkpoint.config, checkpoint.task
    kind, architecture = task.kind if task else None, choose_architecture(checkpoint)
    if kind not in (None, TAG, SPAN) and config.is_causal:
        raise Refused(
            f"{checkpoint.address} has a task's layer that reads the last token of a causal model "
            "(config.model.is_causal), and transformers reads [CLS]: predict from the run itself"
        )
    theirs = family.read_back(config)
    has_head = "mlm" in checkpoint.params and config.mlm_transform
    if has_head and config.mlm_act != theirs.mlm_act:
        raise Refused(
            f"{checkpoint.address} has config.model.head_act = {config.mlm_act} (empty takes "
            f"hidden_act), but {architecture} computes {theirs.mlm_act} in the masked language "
            f"model's head: train on with config.model.head_act={theirs.mlm_act}, or keep it, as "
            "orbax:DIR does"
        )
    if (task or checkpoint.heads.nsp) and not family.reads_alike(config, kind):
        way_out = "predict from the run itself" if task else "keep it, as orbax:DIR does"
        raise Refused(
            f"{checkpoint.address} has config.model.pooler_type = {config.pooler_type} and "
            f"classifier_pooling = {config.classifier_pooling}, but {architecture} computes "
            f"{theirs.pooler_type} and {theirs.classifier_pooling}: fine-tune with these, or "
            f"{way_out}"
        )


def drop_unnamed(checkpoint: Pretrained) -> Pretrained:
    """Leave out the arrays that the class for a checkpoint does not have, such as a pooler.

    Raises:
      Refused: there is no such class.
    """
    name_tensor, given = choose_naming(checkpoint), name_leaves(checkpoint.params)
    has_pooler = require_family(checkpoint).reads_alike(checkpoint.config)
    kept = {
        path: leaf
        for path, leaf in given.items()
        if name_tensor(path).names and (has_pooler or not path.startswith("pooler/"))
    }
    if kept.keys() == given.keys():
        return checkpoint
    return dataclasses.replace(checkpoint, params=nest(kept))


def list_parts(checkpoint: Pretrained) -> set[str]:
    """List the parts of a model that the classes for a checkpoint without a task can hold."""
    family = require_family(checkpoint)
    modules = (*family.names.encoder, *family.names.heads, "mlm/output_bias")
    parts = {module.split("/")[0] for module in modules}
    if checkpoint.config.is_causal:
        return parts - {"pooler", "nsp"}
    # A pooler with another activation does not fit these classes.
    return parts if family.reads_alike(checkpoint.config) else parts - {"pooler"}


def choose_architecture(checkpoint: Pretrained) -> str:
    """Return the class of transformers with these heads, or with the layer of this task."""
    family = require_family(checkpoint)
    if checkpoint.task is not None:
        return family.name_task_class(checkpoint.task.kind)
    if checkpoint.heads.rtd and family.discriminator:
        return family.discriminator
    if checkpoint.config.is_causal:
        return family.causal_lm if checkpoint.heads.mlm else family.encoder
    if checkpoint.heads.nsp and checkpoint.heads.mlm and family.pretraining:
        return family.pretraining
    if family.model_type == "bert" and checkpoint.heads.nsp:
        return "BertForNextSentencePrediction"
    return family.masked_lm if checkpoint.heads.mlm else family.encoder


def find_pairs(checkpoint: Pretrained) -> str:
    """Return the config.data.segments that a model of this kind has learned pairs from."""
    family = _find_family(checkpoint)
    return Family.pairs if family is None else family.pairs


def _find_family(checkpoint: Pretrained) -> Family | None:
    words = checkpoint.vocabulary
    # The classes of families with a kind of vocabulary shift the ids of a bare SentencePiece model.
    kind = words.kind if words.file_name == vocabulary.TOKENIZER else ""
    return find_family(checkpoint.config, words.special_ids["pad"], kind)


def require_family(checkpoint: Pretrained) -> Family:
    """Return the family of transformers as which a checkpoint is exported.

    Raises:
      Refused: there is none.
    """
    family = _find_family(checkpoint)
    if family is None:
        raise Refused(
            f"{checkpoint.address} has an encoder of its own, which none of transformers' classes "
            f"computes; models of {', '.join(FAMILIES)} can be exported: orbax:DIR keeps any"
        )
    return family


def choose_naming(checkpoint: Pretrained) -> Callable[[str], TensorName]:
    """Return the function from our paths to names of arrays in choose_architecture's class."""
    family = require_family(checkpoint)
    # Only the class without heads has names without a prefix.
    prefix = "" if choose_architecture(checkpoint) == family.encoder else family.prefix
    kind = checkpoint.task.kind if checkpoint.task else None
    return functools.partial(family.choose_names(kind).name_tensor, prefix=prefix)


def read_back(checkpoint: Pretrained) -> Pretrained:
    """Return a checkpoint with the settings that its config.json can hold."""
    return dataclasses.replace(
        checkpoint, config=require_family(checkpoint).read_back(checkpoint.config)
    )
