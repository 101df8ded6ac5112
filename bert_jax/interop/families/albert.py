"""Read and write ALBERT: one layer for all, a narrow embedding, sentence order in place of NSP.

Source: modeling_albert.py, configuration_albert.py@transformers 5.23; Lan et al. 2020.
"""

from bert_jax.interop.families import bert
from bert_jax.interop.families.family import ACTS, Family, Names
from bert_jax.interop.model_json import BERT_NUMBERS, Settings

_FIXED = {
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "tie_word_embeddings": True,
    "position_embedding_type": "absolute",
}
_SETTINGS = Settings(
    ACTS,
    BERT_NUMBERS | {"embedding_size": "embedding_size"},
    checked=_FIXED,
    written=_FIXED,
    shape={"share_layers": True},
)

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
    parse=_SETTINGS.parse,
    describe=_SETTINGS.describe,
    decoder="predictions.decoder.weight",
    masked_lm="AlbertForMaskedLM",
    encoder="AlbertModel",
    pretraining="AlbertForPreTraining",
    pairs="sop",
)
