"""Read and write XLNet, without its memory.

Rows of its authors end with [CLS], rows of a store begin with it: a classifier of rows reads the
last or the first token, by the template of the vocabulary.

Source: modeling_xlnet.py, configuration_xlnet.py@transformers 5.23; Yang et al. 2019.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.interop.families.family import (
    ACTS,
    ALIASES,
    ANSWER_NAMES,
    CLASS_ENDS,
    TRAINING,
    Family,
    Names,
)
from bert_jax.interop.model_json import Settings
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN
from data_pipeline.io.refused import Refused
from data_pipeline.vocab.template import Template

_FIXED = {"attn_type": "bi", "bi_data": False, "clamp_len": -1}
# How the classes pool that classify rows; transformers' defaults too.
_SUMMARY = {"summary_use_proj": True, "summary_activation": "tanh"}
_NUMBERS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "dropout",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_eps",
}
_SETTINGS = Settings(
    ACTS,
    _NUMBERS,
    aliases={"n_token": "vocab_size", **{name: _NUMBERS[name] for name in ALIASES}},
    act="ff_activation",
    checked=_FIXED | {"untie_r": True},
    written=_FIXED | _SUMMARY | {"tie_word_embeddings": True, "mem_len": None},
    shape={
        "position_embedding_type": "relative",
        "max_position_embeddings": 1 << 20,  # it has no table of positions
        "type_vocab_size": 0,
        "embedding_norm": False,
        "mlm_transform": False,
    },
    defaults={
        **{"vocab_size": 32000, "d_model": 1024, "n_layer": 24, "n_head": 16},
        **{"d_inner": 4096, "ff_activation": "gelu", "initializer_range": 0.02},
        **{"layer_norm_eps": 1e-12, "dropout": 0.1},
    },
)
_CLASS_ENDS = CLASS_ENDS | {SPAN: "ForQuestionAnsweringSimple"}
_ROW_CLASSES = tuple(_CLASS_ENDS[kind] for kind in (CLASSIFY, CHOOSE))
_ROW_NAMES = {"pooler": "sequence_summary.summary", "classifier": "logits_proj"}


def parse(path: pathlib.Path, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the sizes in the settings of a config.json.

    Raises:
      Refused: a size is missing or impossible; a setting is none that is computed here.
    """
    config = _SETTINGS.parse(path, settings)
    classes = settings.get("architectures")
    if isinstance(classes, list) and str(*classes[:1]).endswith(_ROW_CLASSES):
        for name, value in _SUMMARY.items():
            theirs = settings.get(name, value)
            if theirs != value:
                raise Refused(
                    f"{path} says {name} = {theirs!r:.80}; bert_jax reads {classes[0]} with {name} "
                    f"= {value!r} alone: give the model that it was fine-tuned from, and fine-tune "
                    "that"
                )
    return config


def describe_summary(template: Template) -> dict[str, str]:
    """Return the setting that makes classes of rows read [CLS]."""
    return {"summary_type": "first" if template.is_cls_first else "last"}


def check_summary(path: pathlib.Path, settings: Mapping[str, Any], template: Template) -> None:
    """Raise if a class of rows reads another token than [CLS]."""
    theirs, ours = settings.get("summary_type", "last"), describe_summary(template)["summary_type"]
    if theirs != ours:
        raise Refused(
            f"{path} says summary_type = {theirs!r:.80}, but [CLS] is the {ours} token of the rows "
            "that the tokenizer in its folder makes; put back the files that were saved together, "
            "or give the model that it was fine-tuned from, and fine-tune that"
        )


FAMILY = Family(
    model_type="xlnet",
    prefix="transformer.",
    names=Names(
        encoder={"embeddings/word": "word_embedding"},
        heads={"classifier": "classifier"},
        layer={
            "attention/layer_norm": "rel_attn.layer_norm",
            "mlp/intermediate": "ff.layer_1",
            "mlp/output": "ff.layer_2",
            "mlp/layer_norm": "ff.layer_norm",
        },
        layer_format="layer.{}.",
        output_bias=("lm_loss.bias",),
        arrays={
            "embeddings/target": "mask_emb",
            "attention/query": "rel_attn.q",
            "attention/key": "rel_attn.k",
            "attention/value": "rel_attn.v",
            "attention/output": "rel_attn.o",
            "attention/position": "rel_attn.r",
            "attention/content_bias": "rel_attn.r_w_bias",
            "attention/position_bias": "rel_attn.r_r_bias",
            "attention/segment_bias": "rel_attn.r_s_bias",
            "attention/segment": "rel_attn.seg_embed",
        },
    ),
    parse=parse,
    describe=_SETTINGS.describe,
    decoder="lm_loss.weight",
    masked_lm="XLNetLMHeadModel",
    encoder="XLNetModel",
    task_names={**ANSWER_NAMES, CLASSIFY: _ROW_NAMES, REGRESS: _ROW_NAMES, CHOOSE: _ROW_NAMES},
    class_ends=_CLASS_ENDS,
    describe_summary=describe_summary,
    check_summary=check_summary,
    unrecorded=(*TRAINING, "max_position_embeddings"),
)
