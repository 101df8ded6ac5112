"""Read and write DistilBERT: BERT without segments and without a pooler.

Source: modeling_distilbert.py, configuration_distilbert.py@transformers 5.23; Sanh et al. 2019.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.interop.families.family import ACT_NAMES, Family, Names, check_fixed, parse_act
from bert_jax.interop.model_json import parse_numbers

_FIXED = {"tie_weights_": True, "sinusoidal_pos_embds": False}
_NUMBERS = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
}


def parse(path: pathlib.Path, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the sizes in the settings of a config.json.

    Raises:
      ValueError: a size is missing or impossible; a setting is none that bert_jax computes.
    """
    check_fixed(path, settings, _FIXED)
    numbers = parse_numbers(path, settings, _NUMBERS)
    return ModelConfig(
        hidden_act=parse_act(path, settings, "activation"), type_vocab_size=0, **numbers
    )


def describe(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of a config.json for a model."""
    return {
        **{theirs: getattr(config, ours) for ours, theirs in _NUMBERS.items()},
        **_FIXED,
        "activation": ACT_NAMES[config.hidden_act],
    }


FAMILY = Family(
    model_type="distilbert",
    prefix="distilbert.",
    names=Names(
        encoder={
            "embeddings/word": "embeddings.word_embeddings",
            "embeddings/position": "embeddings.position_embeddings",
            "embeddings/layer_norm": "embeddings.LayerNorm",
        },
        heads={
            "mlm/transform": "vocab_transform",
            "mlm/layer_norm": "vocab_layer_norm",
            "classifier": "classifier",
        },
        layer={
            "attention/query": "attention.q_lin",
            "attention/key": "attention.k_lin",
            "attention/value": "attention.v_lin",
            "attention/output": "attention.out_lin",
            "attention/layer_norm": "sa_layer_norm",
            "mlp/intermediate": "ffn.lin1",
            "mlp/output": "ffn.lin2",
            "mlp/layer_norm": "output_layer_norm",
        },
        layer_format="transformer.layer.{}.",
        output_bias=("vocab_projector.bias",),
    ),
    parse=parse,
    describe=describe,
    decoder="vocab_projector.weight",
    masked_lm="DistilBertForMaskedLM",
    encoder="DistilBertModel",
)
