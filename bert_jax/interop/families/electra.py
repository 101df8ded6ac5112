"""Read and write ELECTRA's generator: BERT with a narrow embedding.

Source: modeling_electra.py, configuration_electra.py@transformers 5.23; Clark et al. 2020.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.interop.families import bert
from bert_jax.interop.families.family import Family, check_fixed, parse_act
from bert_jax.interop.model_json import parse_numbers

_NUMBERS = bert.NUMBERS | {"embedding_size": "embedding_size"}


def parse(path: pathlib.Path, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the sizes in the settings of a config.json.

    Raises:
      ValueError: a size is missing or impossible; a setting is none that bert_jax computes.
    """
    check_fixed(path, settings, bert.FIXED)
    numbers = parse_numbers(path, settings, _NUMBERS)
    return ModelConfig(hidden_act=parse_act(path, settings, "hidden_act"), **numbers)


def describe(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of a config.json for a model."""
    return bert.describe(config) | {"embedding_size": config.embedding_size}


_ENCODER = {ours: name for ours, name in bert.NAMES.encoder.items() if ours != "pooler"}

FAMILY = Family(
    model_type="electra",
    prefix="electra.",
    names=dataclasses.replace(
        bert.NAMES,
        encoder=_ENCODER | {"embeddings/projection": "embeddings_project"},
        heads={
            "mlm/transform": "generator_predictions.dense",
            "mlm/layer_norm": "generator_predictions.LayerNorm",
            "classifier": "classifier",
        },
        output_bias=("generator_lm_head.bias",),
    ),
    parse=parse,
    describe=describe,
    decoder="generator_lm_head.weight",
    masked_lm="ElectraForMaskedLM",
    encoder="ElectraModel",
)
