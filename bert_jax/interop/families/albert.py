"""Read and write ALBERT: one layer for all, a narrow embedding, sentence order in place of NSP.

Source: modeling_albert.py, configuration_albert.py@transformers 5.23; Lan et al. 2020.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.interop.families import bert
from bert_jax.interop.families.family import Family, Names, check_fixed, parse_act
from bert_jax.interop.model_json import parse_numbers

_FIXED = {"num_hidden_groups": 1, "inner_group_num": 1, "tie_word_embeddings": True}
_NUMBERS = bert.NUMBERS | {"embedding_size": "embedding_size"}


def parse(path: pathlib.Path, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the sizes in the settings of a config.json.

    Raises:
      ValueError: a size is missing or impossible; a setting is none that bert_jax computes.
    """
    check_fixed(path, settings, _FIXED)
    numbers = parse_numbers(path, settings, _NUMBERS)
    return ModelConfig(
        hidden_act=parse_act(path, settings, "hidden_act"), share_layers=True, **numbers
    )


def describe(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of a config.json for a model."""
    return bert.describe(config) | _FIXED | {"embedding_size": config.embedding_size}


FAMILY = Family(
    model_type="albert",
    prefix="albert.",
    names=Names(
        encoder={
            **{ours: name for ours, name in bert.NAMES.encoder.items() if ours != "pooler"},
            "embeddings/projection": "encoder.embedding_hidden_mapping_in",
            "pooler": "pooler",
        },
        heads={
            "mlm/transform": "predictions.dense",
            "mlm/layer_norm": "predictions.LayerNorm",
            "nsp": "sop_classifier.classifier",
            "classifier": "classifier",
        },
        layer={
            "attention/query": "attention.query",
            "attention/key": "attention.key",
            "attention/value": "attention.value",
            "attention/output": "attention.dense",
            "attention/layer_norm": "attention.LayerNorm",
            "mlp/intermediate": "ffn",
            "mlp/output": "ffn_output",
            "mlp/layer_norm": "full_layer_layer_norm",
        },
        layer_format="encoder.albert_layer_groups.{}.albert_layers.0.",
        output_bias=("predictions.bias", "predictions.decoder.bias"),
    ),
    parse=parse,
    describe=describe,
    decoder="predictions.decoder.weight",
    masked_lm="AlbertForMaskedLM",
    encoder="AlbertModel",
)
