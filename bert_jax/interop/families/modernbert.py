"""Read and write ModernBERT (and Ettin's encoders, which have its shape).

Source: modeling_modernbert.py, configuration_modernbert.py@transformers 5.23; Warner et al. 2024.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.interop.families.family import Family, Names, check_fixed
from bert_jax.interop.model_json import parse_numbers

# Field of ModelConfig -> setting of config.json, where the names differ.
_NUMBERS = {
    **{name: name for name in ("vocab_size", "hidden_size", "intermediate_size")},
    **{name: name for name in ("num_hidden_layers", "num_attention_heads")},
    **{name: name for name in ("max_position_embeddings", "global_attn_every_n_layers")},
    "local_attention": "local_attention",
    "layer_norm_eps": "norm_eps",
    "initializer_range": "initializer_range",
}
_FIXED = {
    "hidden_activation": "gelu",
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "decoder_bias": True,
    "tie_word_embeddings": True,
}
_SHAPE: dict[str, Any] = {
    "hidden_act": "gelu_erf",
    "type_vocab_size": 0,
    "position_embedding_type": "rotary",
    "norm_position": "pre",
    "norm_bias": False,
    "linear_bias": False,
    "gated_mlp": True,
    "dropout_sites": "attention",
    "initializer": "megatron",
    "pooler_type": "mlm_transform",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {"global_rope_theta": (_FULL, 160_000.0), "local_rope_theta": (_SLIDING, 10_000.0)}
_DROPOUTS = {"hidden_dropout_prob": "attention_dropout"}  # of attention's outputs

_NAMES = Names(
    encoder={
        "embeddings/word": "embeddings.tok_embeddings",
        "embeddings/layer_norm": "embeddings.norm",
        "layer_norm": "final_norm",
    },
    heads={
        "mlm/transform": "head.dense",
        "mlm/layer_norm": "head.norm",
        "classifier": "classifier",
    },
    layer={
        "attention/output": "attn.Wo",
        "attention/layer_norm": "attn_norm",
        "mlp/output": "mlp.Wo",
        "mlp/layer_norm": "mlp_norm",
    },
    layer_format="layers.{}.",
    output_bias=("decoder.bias",),
    fused={
        "attention/query": ("attn.Wqkv", 0, 3),
        "attention/key": ("attn.Wqkv", 1, 3),
        "attention/value": ("attn.Wqkv", 2, 3),
        "mlp/intermediate": ("mlp.Wi", 0, 2),
        "mlp/gated": ("mlp.Wi", 1, 2),
    },
)


def parse(path: pathlib.Path, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the sizes and choices in the settings of a config.json.

    Raises:
      ValueError: a size is missing or impossible; a setting is none of ModernBERT's.
    """
    check_fixed(path, settings, _FIXED)
    numbers = parse_numbers(path, settings, _NUMBERS | _DROPOUTS)
    layers = numbers["num_hidden_layers"]
    types = settings.get("layer_types")
    every = numbers.setdefault("global_attn_every_n_layers", _find_period(types, layers))
    if types not in (None, [_SLIDING if i % every else _FULL for i in range(layers)]):
        raise ValueError(
            f"{path} says layer_types = {types!r:.80}; bert_jax reads those with {_FULL} in the "
            "first layer and then in every Nth: give such a checkpoint"
        )
    if every == 1:
        numbers["local_attention"] = 0
    rope = settings.get("rope_parameters") or {}
    thetas: dict[str, Any] = {
        field: float(rope.get(kind, {}).get("rope_theta", settings.get(field, default)))
        for field, (kind, default) in _THETAS.items()
    }
    return ModelConfig(attention_probs_dropout_prob=0.0, **numbers, **thetas, **_SHAPE)


def _find_period(types: Any, layers: int) -> int:
    """Return the distance of layers without a window; ModernBERT's own if it is not stated."""
    if not isinstance(types, list):
        return 3
    return types.index(_FULL, 1) if _FULL in types[1:] else layers


def describe(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of a config.json for a model."""
    names = _NUMBERS | _DROPOUTS
    layers = range(config.num_hidden_layers)
    return {
        **{name: getattr(config, field) for field, name in names.items()},
        **_FIXED,
        "layer_types": [
            _SLIDING if i % config.global_attn_every_n_layers else _FULL for i in layers
        ],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": getattr(config, field)}
            for field, (kind, _) in _THETAS.items()
        },
        "embedding_dropout": 0.0,
        "mlp_dropout": 0.0,
    }


FAMILY = Family(
    model_type="modernbert",
    prefix="model.",
    names=_NAMES,
    parse=parse,
    describe=describe,
    decoder="decoder.weight",
    masked_lm="ModernBertForMaskedLM",
    encoder="ModernBertModel",
)
