"""Read and write ALBERT: one layer for all, a narrow embedding, sentence order in place of NSP.

Source: modeling_albert.py, configuration_albert.py@transformers 5.23; Lan et al. 2020.
"""

import dataclasses
import pathlib

from bert_jax.config import ModelConfig
from bert_jax.interop.families import bert
from bert_jax.interop.families.family import HIDDEN_ACT, Family, Names
from bert_jax.interop.model_json import BERT_NUMBERS, JsonObject, Settings

_FIXED = {"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"}
_SETTINGS = Settings(
    HIDDEN_ACT,
    BERT_NUMBERS | {"embedding_size": "embedding_size"},
    checked=_FIXED,
    written=_FIXED | {"tie_word_embeddings": True},
    shape={"share_layers": True},
    defaults={
        **bert.DEFAULTS,
        **{"vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096},
        **{"num_attention_heads": 64, "intermediate_size": 16384, "hidden_act": "gelu_new"},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    },
)


def _complete(path: pathlib.Path, settings: JsonObject, config: ModelConfig) -> ModelConfig:
    """Keep the projection of embeddings even where they are as wide as the encoder."""
    is_wide = config.embedding_size == config.hidden_size
    return dataclasses.replace(config, embedding_projection=is_wide)


FAMILY = Family(
    model_type="albert",
    prefix="albert.",
    names=Names(
        encoder={
            **bert.ENCODER_WITHOUT_POOLER,
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
    settings=_SETTINGS,
    complete=_complete,
    decoder="predictions.decoder.weight",
    masked_lm="AlbertForMaskedLM",
    encoder="AlbertModel",
    pretraining="AlbertForPreTraining",
    pairs="sop",
)
