"""Read and write ModernBERT (and Ettin's encoders, which have its shape).

Source: modeling_modernbert.py, configuration_modernbert.py@transformers 5.23; Warner et al. 2024.
"""

import dataclasses
import math
import pathlib
from typing import Any

from bert_jax.config import MODERNBERT, ModelConfig
from bert_jax.interop.families.family import ACTS, Family, Names
from bert_jax.interop.model_json import JsonObject, Settings
from data_pipeline.io import Refused

# Field of ModelConfig -> setting of config.json.
_NUMBERS = {
    **{name: name for name in ("vocab_size", "hidden_size", "intermediate_size")},
    **{name: name for name in ("num_hidden_layers", "num_attention_heads")},
    **{name: name for name in ("max_position_embeddings", "global_attn_every_n_layers")},
    "local_attention": "local_attention",
    "layer_norm_eps": "norm_eps",
    "initializer_range": "initializer_range",
    "hidden_dropout_prob": "attention_dropout",  # dropout of attention's outputs
}
_FIXED = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEFAULTS: dict[str, Any] = {
    **{"vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152},
    **{"num_hidden_layers": 22, "num_attention_heads": 12, "hidden_activation": "gelu"},
    **{"max_position_embeddings": 8192, "initializer_range": 0.02, "norm_eps": 1e-5},
    **{"attention_dropout": 0.0, "local_attention": 128, "global_attn_every_n_layers": 3},
    **{"classifier_pooling": "cls", "classifier_activation": "gelu"},
}
_THETAS = {"global_rope_theta": (_FULL, 160_000.0), "local_rope_theta": (_SLIDING, 10_000.0)}
_SETTINGS = Settings(
    {
        "hidden_act": ("hidden_activation", ACTS),
        "head_act": ("classifier_activation", ACTS),
        "classifier_pooling": ("classifier_pooling", {"cls": "cls", "mean": "mean"}),
    },
    _NUMBERS,
    checked=_FIXED | {"rope_scaling": None, "rope_theta": None},
    written=_FIXED | {"tie_word_embeddings": True, "embedding_dropout": 0.0, "mlp_dropout": 0.0},
    shape=MODERNBERT,
    defaults=_DEFAULTS,
)
_PLAIN_ROPE: dict[str, Any] = {
    **{"rope_type": "default", "type": "default"},
    **{"rope_theta": 0, "partial_rotary_factor": 1.0},
}

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


def _complete(path: pathlib.Path, settings: JsonObject, config: ModelConfig) -> ModelConfig:
    """Add the windows of the layers and the bases of the rotary angles."""
    layers = config.num_hidden_layers
    every = config.global_attn_every_n_layers
    types = settings.get("layer_types")
    if "global_attn_every_n_layers" not in settings:
        every = _find_period(types, layers)
    if types not in (None, _list_types(every, layers)):
        raise Refused(
            f"{path} says layer_types = {types!r:.80}; bert_jax reads those with {_FULL} in the "
            "first layer and then in every Nth: give such a checkpoint"
        )
    half = config.local_attention // 2
    if settings.get("sliding_window", half) != half:
        raise Refused(
            f"{path} says sliding_window = {settings['sliding_window']!r:.80} and local_attention "
            f"= {config.local_attention}, and half of that is {half}: remove the one that is wrong"
        )
    return dataclasses.replace(
        config,
        global_attn_every_n_layers=every,
        local_attention=0 if every == 1 else config.local_attention,
        global_rope_theta=_parse_theta(path, settings, "global_rope_theta"),
        local_rope_theta=_parse_theta(path, settings, "local_rope_theta"),
    )


def _find_period(types: Any, layers: int) -> int:
    """Return the distance between layers without a window; the published default if not stated."""
    if not isinstance(types, list):
        return int(_DEFAULTS["global_attn_every_n_layers"])
    return types.index(_FULL, 1) if _FULL in types[1:] else layers


def _list_types(every: int, layers: int) -> list[str]:
    return [_SLIDING if i % every else _FULL for i in range(layers)]


def _parse_theta(path: pathlib.Path, settings: JsonObject, field: str) -> float:
    """Return the base of the rotary angles: by kind of layer since transformers 5, flat before."""
    kind, default = _THETAS[field]
    by_kind = settings.get("rope_parameters") or {}
    is_by_kind = isinstance(by_kind, dict) and by_kind.keys() <= {_FULL, _SLIDING}
    rope = (by_kind.get(kind) or {}) if is_by_kind else None
    if isinstance(rope, dict) and {**rope, "rope_theta": 0}.items() <= _PLAIN_ROPE.items():
        theta: Any = rope.get("rope_theta", settings.get(field, default))
        if theta is None and "rope_theta" not in rope and field != "global_rope_theta":
            return _parse_theta(path, settings, "global_rope_theta")  # transformers 4 does so
        if type(theta) in (int, float) and 0 < theta < math.inf:
            return float(theta)
        wrong = f"{field} = {theta!r:.80}; it must be a number above 0"
    else:
        wrong = (
            f"rope_parameters = {by_kind!r:.80}; bert_jax computes rope_type = 'default' alone, "
            f"with a rope_theta for {_FULL} and one for {_SLIDING}"
        )
    raise Refused(f"{path} says {wrong}: put back the file that the checkpoint came with")


def _describe_layers(config: ModelConfig) -> dict[str, Any]:
    """Return the settings that _complete reads."""
    return {
        "local_attention": config.local_attention or _DEFAULTS["local_attention"],
        "layer_types": _list_types(config.global_attn_every_n_layers, config.num_hidden_layers),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": getattr(config, field)}
            for field, (kind, _) in _THETAS.items()
        },
        # What transformers 4 reads.
        **{field: getattr(config, field) for field in _THETAS},
    }


FAMILY = Family(
    model_type="modernbert",
    prefix="model.",
    names=_NAMES,
    settings=_SETTINGS,
    complete=_complete,
    describe_rest=_describe_layers,
    decoder="decoder.weight",
    masked_lm="ModernBertForMaskedLM",
    encoder="ModernBertModel",
    task_names={},
)
