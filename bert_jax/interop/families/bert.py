"""Read and write BERT, left to right as BertLMHeadModel.

Source: modeling_bert.py, configuration_bert.py@transformers 4.57; gamma, beta: names of 2018.
"""

import dataclasses

from bert_jax.interop.families.family import HIDDEN_ACT, Family, Names
from bert_jax.interop.model_json import Settings

# The defaults of BertConfig; RoBERTa and ELECTRA replace some of them.
DEFAULTS = {
    **{"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12},
    **{"num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu"},
    **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    **{"max_position_embeddings": 512, "type_vocab_size": 2},
    **{"initializer_range": 0.02, "layer_norm_eps": 1e-12},
}
SETTINGS = Settings(
    HIDDEN_ACT,
    checked={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "quantization_config": None,
    },
    written={"position_embedding_type": "absolute", "tie_word_embeddings": True},
    defaults=DEFAULTS,
)
_OWN_SETTINGS = dataclasses.replace(
    SETTINGS,
    flags={"is_causal": "is_decoder"},
    checked={name: value for name, value in SETTINGS.checked.items() if name != "is_decoder"},
)
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

# Names in families with BERT's encoder but no pooler, or a pooler of another name.
ENCODER_WITHOUT_POOLER = {
    ours: theirs for ours, theirs in NAMES.encoder.items() if ours != "pooler"
}

FAMILY = Family(
    model_type="bert",
    prefix="bert.",
    names=NAMES,
    settings=_OWN_SETTINGS,
    decoder="cls.predictions.decoder.weight",
    masked_lm="BertForMaskedLM",
    pretraining="BertForPreTraining",
    causal_lm="BertLMHeadModel",
    encoder="BertModel",
)
