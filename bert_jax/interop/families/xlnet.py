"""Read and write XLNet, without its memory.

The authors' rows end with [CLS], a store's rows begin with it: the vocabulary's template decides
whether a classifier of rows reads the last or the first token.

Source: modeling_xlnet.py, configuration_xlnet.py@transformers 5.23; Yang et al. 2019.
"""

import pathlib

from bert_jax.config import ModelConfig
from bert_jax.interop.families.family import (
    ACTS,
    ALIASES,
    CLASS_ENDS,
    TRAINING,
    Family,
    Names,
    name_tasks,
)
from bert_jax.interop.model_json import JsonObject, Settings, check_values
from bert_jax.tasks.task import CHOOSE, CLASSIFY, SPAN

_FIXED = {"attn_type": "bi", "bi_data": False, "clamp_len": -1}
# Pooling in the classes that classify rows, which is also the default of transformers.
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
    {"hidden_act": ("ff_activation", ACTS)},
    _NUMBERS,
    aliases={"n_token": "vocab_size", **{name: _NUMBERS[name] for name in ALIASES}},
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


def _check_pooling(path: pathlib.Path, settings: JsonObject, config: ModelConfig) -> ModelConfig:
    """Raise Refused if a classifier of rows pools in another way than published XLNets."""
    classes = settings.get("architectures")
    if isinstance(classes, list) and str(*classes[:1]).endswith(_ROW_CLASSES):
        way_out = "give the model that it was fine-tuned from, and fine-tune that"
        check_values(path, settings, _SUMMARY, f" in {classes[0]}", way_out)
    return config


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
    settings=_SETTINGS,
    complete=_check_pooling,
    decoder="lm_loss.weight",
    masked_lm="XLNetLMHeadModel",
    encoder="XLNetModel",
    task_names=name_tasks(_ROW_NAMES),
    class_ends=_CLASS_ENDS,
    has_summary_type=True,
    unrecorded=(*TRAINING, "max_position_embeddings"),
)
