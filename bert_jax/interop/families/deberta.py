"""Read and write DeBERTa-v2 with the settings of v3: distances in the scores, no convolution.

The head of the masked language model has two sets of names, which compute the same: the
names of `legacy` are written, both are read.

Source: modeling_deberta_v2.py, configuration_deberta_v2.py@transformers 5.24; He et al. 2023.
"""

import dataclasses
import pathlib
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.config.model_rules import check_buckets
from bert_jax.interop.families import bert
from bert_jax.interop.families.family import HIDDEN_ACT, Family, name_tasks
from bert_jax.interop.model_json import (
    BERT_NUMBERS,
    JsonObject,
    Settings,
    check_values,
    read_choice,
)
from data_pipeline.io import Refused, small_files

_SETTINGS = Settings(
    HIDDEN_ACT,
    {name: name for name in BERT_NUMBERS if name != "type_vocab_size"},
    flags={name: name for name in ("share_att_key", "position_biased_input")},
    checked={"relative_attention": True, "conv_kernel_size": 0, "quantization_config": None},
    written={
        **{"relative_attention": True, "legacy": True, "tie_word_embeddings": True},
        "pooler_dropout": 0.0,
    },
    shape={"position_embedding_type": "disentangled"},
    defaults={
        **bert.DEFAULTS,
        **{"vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24},
        **{"num_attention_heads": 24, "intermediate_size": 6144, "layer_norm_eps": 1e-7},
        **{"type_vocab_size": 0, "relative_attention": False, "position_biased_input": True},
    },
)
_POOLER_ACTS = {"gelu": "gelu_erf", "tanh": "tanh", "relu": "relu"}
_NORMS = ("none", "layer_norm")  # norms of the table of distances
_TERMS = ("c2p", "p2c")


def _complete(path: pathlib.Path, settings: JsonObject, config: ModelConfig) -> ModelConfig:
    """Add the pooler, and how attention reads distances."""
    sizes = dict.fromkeys(("embedding_size", "pooler_hidden_size"), config.hidden_size)
    head_size = config.hidden_size // config.num_attention_heads
    remark = ", which follows from its other sizes"
    check_values(path, settings, sizes | {"attention_head_size": head_size}, remark)
    defaults = {"pos_att_type": None, "norm_rel_ebd": "none", "pooler_hidden_act": "gelu"}
    terms, norm, act = (  # files may write them in capitals
        value.lower() if isinstance(value, str) else value
        for value in (settings.get(name, default) for name, default in defaults.items())
    )
    listed = [*map(str.strip, terms.split("|"))] if isinstance(terms, str) else terms
    if not isinstance(listed, list) or not listed or not set(map(str, listed)) <= {*_TERMS}:
        raise Refused(
            f"{path} says pos_att_type = {terms!r:.80}; bert_jax computes {' and '.join(_TERMS)}, "
            "or one of them: give a checkpoint of that kind"
        )
    buckets = small_files.field(settings, "position_buckets", int, path, -1)
    reach = small_files.field(settings, "max_relative_positions", int, path, -1)
    config = dataclasses.replace(
        config,
        type_vocab_size=small_files.field(settings, "type_vocab_size", int, path, 0),
        pos_att_type="|".join(term for term in _TERMS if term in listed),
        position_buckets=max(buckets, 0),
        max_relative_positions=reach if reach > 0 else config.max_position_embeddings,
        norm_rel_ebd=read_choice(path, "norm_rel_ebd", norm, _NORMS) != "none",
        pooler_type=_POOLER_ACTS[read_choice(path, "pooler_hidden_act", act, _POOLER_ACTS)],
    )
    has_buckets, allowed = check_buckets(config)
    if not has_buckets:
        raise Refused(f"{path} says position_buckets = {config.position_buckets}; {allowed}")
    return config


def _describe_rest(config: ModelConfig) -> dict[str, Any]:
    """Return the settings that _complete reads.

    The activation of a pooler that DeBERTa does not have is written as gelu, DeBERTa's own.
    """
    pooler_acts = {ours: theirs for theirs, ours in _POOLER_ACTS.items()}
    return {
        "type_vocab_size": config.type_vocab_size,
        "pos_att_type": config.pos_att_type.split("|"),
        "position_buckets": config.position_buckets or -1,
        "max_relative_positions": config.max_relative_positions,
        "norm_rel_ebd": "layer_norm" if config.norm_rel_ebd else "none",
        "pooler_hidden_act": pooler_acts.get(config.pooler_type, "gelu"),
        "pooler_hidden_size": config.hidden_size,
    }


FAMILY = Family(
    model_type="deberta-v2",
    prefix="deberta.",
    names=dataclasses.replace(
        bert.NAMES,
        encoder={
            **bert.ENCODER_WITHOUT_POOLER,
            "distances/table": "encoder.rel_embeddings",
            "distances/layer_norm": "encoder.LayerNorm",
        },
        heads={name: theirs for name, theirs in bert.NAMES.heads.items() if name != "nsp"},
        layer={
            **bert.NAMES.layer,
            "attention/query": "attention.self.query_proj",
            "attention/key": "attention.self.key_proj",
            "attention/value": "attention.self.value_proj",
            "attention/distances/key": "attention.self.pos_key_proj",
            "attention/distances/query": "attention.self.pos_query_proj",
        },
        output_bias=(*bert.NAMES.output_bias, "lm_predictions.lm_head.bias"),
        other_heads={
            "mlm/transform": "lm_predictions.lm_head.dense",
            "mlm/layer_norm": "lm_predictions.lm_head.LayerNorm",
        },
    ),
    settings=_SETTINGS,
    complete=_complete,
    describe_rest=_describe_rest,
    decoder="cls.predictions.decoder.weight",
    masked_lm="DebertaV2ForMaskedLM",
    encoder="DebertaV2Model",
    # Published models set position_biased_input to false, but keep the table.
    ignored=("embeddings.position_embeddings.weight",),
    task_names=name_tasks({"pooler": "pooler.dense"}),
)
