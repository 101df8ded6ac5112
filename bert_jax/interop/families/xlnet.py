"""Read and write XLNet, without its memory.

Source: modeling_xlnet.py, configuration_xlnet.py@transformers 5.23; Yang et al. 2019.
"""

from bert_jax.interop.families.family import ACTS, TRAINING, Family, Names
from bert_jax.interop.model_json import Settings

_FIXED = {
    "attn_type": "bi",
    "bi_data": False,
    "clamp_len": -1,
    "tie_word_embeddings": True,
}
_SETTINGS = Settings(
    ACTS,
    {
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "dropout",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "layer_norm_eps",
    },
    act="ff_activation",
    checked=_FIXED | {"untie_r": True},
    written=_FIXED | {"mem_len": None},
    shape={
        "position_embedding_type": "relative",
        "max_position_embeddings": 1 << 20,  # it has no table of positions
        "type_vocab_size": 0,
        "embedding_norm": False,
        "mlm_transform": False,
    },
)

FAMILY = Family(
    model_type="xlnet",
    prefix="transformer.",
    names=Names(
        encoder={"embeddings/word": "word_embedding"},
        heads={},
        layer={
            "attention/layer_norm": "rel_attn.layer_norm",
            "mlp/intermediate": "ff.layer_1",
            "mlp/output": "ff.layer_2",
            "mlp/layer_norm": "ff.layer_norm",
        },
        layer_format="layer.{}.",
        output_bias=("lm_loss.bias",),
        layer_arrays={
            "attention/query": "rel_attn.q",
            "attention/key": "rel_attn.k",
            "attention/value": "rel_attn.v",
            "attention/output": "rel_attn.o",
            "attention/position": "rel_attn.r",
            "attention/content_bias": "rel_attn.r_w_bias",
            "attention/position_bias": "rel_attn.r_r_bias",
            "attention/segment_bias": "rel_attn.r_s_bias",
            "attention/segment": "rel_attn.seg_embed",
        },
        encoder_arrays={"embeddings/target": "mask_emb"},
    ),
    parse=_SETTINGS.parse,
    describe=_SETTINGS.describe,
    decoder="lm_loss.weight",
    masked_lm="XLNetLMHeadModel",
    encoder="XLNetModel",
    unheld=(*TRAINING, "max_position_embeddings"),
)
