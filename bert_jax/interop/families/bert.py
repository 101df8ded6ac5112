"""Read and write BERT.

Source: modeling_bert.py, configuration_bert.py@transformers 4.57; LayerNorm.gamma and beta: 2018's.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.interop.families.family import ACT_NAMES, Family, Names, check_fixed, parse_act
from bert_jax.interop.model_json import BERT_NUMBERS, parse_numbers

# Settings that change what the encoder computes, and the one value that is BERT's.
FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}
NUMBERS = {name: name for name in BERT_NUMBERS}  # field of ModelConfig -> setting


NAMES = Names(
    encoder={
        "embeddings/word": "embeddings.word_embeddings",
        "embeddings/position": "embeddings.position_embeddings",
        "embeddings/segment": "embeddings.token_type_embeddings",
        "embeddings/layer_norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
    },
    heads={
        "mlm/transform": "cls.predictions.transform.dense",
        "mlm/layer_norm": "cls.predictions.transform.LayerNorm",
        "nsp": "cls.seq_relationship",
        "classifier": "classifier",
    },
    layer={
        "attention/query": "attention.self.query",
        "attention/key": "attention.self.key",
        "attention/value": "attention.self.value",
        "attention/output": "attention.output.dense",
        "attention/layer_norm": "attention.output.LayerNorm",
        "mlp/intermediate": "intermediate.dense",
        "mlp/output": "output.dense",
        "mlp/layer_norm": "output.LayerNorm",
    },
    layer_format="encoder.layer.{}.",
    output_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)


def parse(path: pathlib.Path, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the sizes in the settings of a config.json.

    Raises:
      ValueError: a size is missing or impossible; a setting is none of BERT's.
    """
    check_fixed(path, settings, FIXED)
    return ModelConfig(
        hidden_act=parse_act(path, settings, "hidden_act"),
        **parse_numbers(path, settings, NUMBERS),
    )


def describe(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of a config.json for a model."""
    return {
        **{theirs: getattr(config, ours) for ours, theirs in NUMBERS.items()},
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "hidden_act": ACT_NAMES[config.hidden_act],
    }


FAMILY = Family(
    model_type="bert",
    prefix="bert.",
    names=NAMES,
    parse=parse,
    describe=describe,
    decoder="cls.predictions.decoder.weight",
    masked_lm="BertForMaskedLM",
    encoder="BertModel",
)
