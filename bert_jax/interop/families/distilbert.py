"""Read and write DistilBERT: BERT without segments and without a pooler.

Source: modeling_distilbert.py, configuration_distilbert.py@transformers 5.23; Sanh et al. 2019.
"""

from bert_jax.interop.families import bert
from bert_jax.interop.families.family import ACTS, ALIASES, Family, Names, name_tasks
from bert_jax.interop.model_json import Settings

_TIED = {"tie_weights_": True}
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
_SETTINGS = Settings(
    {"hidden_act": ("activation", ACTS)},
    _NUMBERS,
    aliases={name: _NUMBERS[name] for name in ALIASES},
    checked=_TIED,
    written={**_TIED, "sinusoidal_pos_embds": False},
    # config.json has no setting for the epsilon.
    shape={"type_vocab_size": 0, "pooler_type": "relu", "layer_norm_eps": 1e-12},
    defaults={
        **{"vocab_size": 30522, "max_position_embeddings": 512, "n_layers": 6, "n_heads": 12},
        **{"dim": 768, "hidden_dim": 3072, "dropout": 0.1, "attention_dropout": 0.1},
        **{"activation": "gelu", "initializer_range": 0.02},
    },
)

FAMILY = Family(
    model_type="distilbert",
    prefix="distilbert.",
    names=Names(
        encoder=bert.ENCODER_WITHOUT_POOLER,
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
    settings=_SETTINGS,
    decoder="vocab_projector.weight",
    masked_lm="DistilBertForMaskedLM",
    encoder="DistilBertModel",
    task_names=name_tasks({"pooler": "pre_classifier"}),
)
