"""The smallest models worth looking at: learn from Python's own documentation on two CPU cores.

    make quickstart
    python -m bert_jax.train --config=configs/quickstart.py:model=electra \
        --config.data.store=runs/quickstart/store --workdir=DIR

The first builds the corpus and trains a BERT on it; the second trains another of MODELS there, at
the same size, on as many rows. Expect: docs/results.md has time and held-out loss of the BERT
beside the unigram baseline, docs/guide/models.md those of all.

Most of the steps see short sequences and few of them: in the same time there are more steps, and
the loss falls further (docs/experiments.md). The second phase teaches the positions that the first
one never saw, with a learning rate of its own: at the end of the first one's they hardly move.
"""

import dataclasses

import ml_collections

from bert_jax import config as c

BERT = c.ModelConfig(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=64,
    initializer_range=0.09,  # about hidden_size ** -0.5
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
# What differs from BERT: fields of the model, of the data, and of the run (one of two phases).
MODELS: dict[str, dict[str, dict[str, object]]] = {
    "bert": {},
    "roberta": {
        "model": {"hidden_act": "gelu_erf", "type_vocab_size": 1},
        "data": {"segments": "full_sentences", "short_seq_prob": 0.0},
        "run": {"objective": "mlm"},
    },
    "albert": {
        "model": {"embedding_size": 64, "share_layers": True},
        "data": {"segments": "sop", "masking": "ngram"},
    },
    "electra": {
        "model": {"generator_hidden_size": 64},
        "data": {
            "segments": "doc_sentences",
            "short_seq_prob": 0.05,
            "mask_token_share": 0.85,
            "random_token_share": 0.0,
        },
        "run": {"objective": "rtd"},
    },
    "modernbert": {
        "model": {
            "hidden_act": "gelu_erf",
            "intermediate_size": 336,  # with its gate as many weights as 512 without
            "type_vocab_size": 0,
            "position_embedding_type": "rotary",
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
            "norm_position": "pre",
            "norm_bias": False,
            "linear_bias": False,
            "gated_mlp": True,
            "initializer": "megatron",
        },
        "data": {"segments": "doc_sentences", "short_seq_prob": 0.0, "masked_lm_prob": 0.3},
        "run": {"objective": "mlm"},
    },
    "xlnet": {
        "model": {
            "hidden_act": "gelu_erf",
            "type_vocab_size": 0,
            "position_embedding_type": "relative",
            "embedding_norm": False,
            "mlm_transform": False,
        },
        "data": {"masked_lm_prob": 1 / 6, "masking": "ngram", "longest_ngram": 5},
        "run": {"objective": "permutation"},
    },
    "left_to_right": {"run": {"objective": "causal"}},
    "causal_then_masked": {
        "data": {"segments": "full_sentences", "short_seq_prob": 0.0},
        "run": {"objective": "mlm"},
    },
}
MODELS["electra_gdes"] = {
    **MODELS["electra"],
    "model": {**MODELS["electra"]["model"], "generator_embeddings": "gdes"},
}


def get_config(text: str = "") -> ml_collections.ConfigDict:
    """Two layers, two short phases, bias-corrected Adam as in tiny.py; text is after the colon."""
    name = c.arguments(text, model="bert")["model"]
    if name not in MODELS:
        raise ValueError(f"model is {name!r}; this config has {sorted(MODELS)}")
    changes = MODELS[name]
    config = c.Config(
        model=dataclasses.replace(BERT, **changes.get("model", {})),
        phases=(
            c.Phase(
                32,
                1000,
                batch_size=96,
                objective="causal" if name == "causal_then_masked" else "",
            ),
            c.Phase(
                64,
                240,
                batch_size=48,
                restart_learning_rate=3e-3,
                restart_warmup_steps=30,
            ),
        ),
        optim=c.OptimConfig(name="adamw", learning_rate=3e-3, warmup_steps=100, beta2=0.98),
        eval=c.EvalConfig(every_steps=200, examples=1024),
        checkpoint=c.CheckpointConfig(every_steps=400),
        log_every_steps=40,
    )
    data = dataclasses.replace(config.data, **changes.get("data", {}))
    return c.to_config_dict(dataclasses.replace(config, data=data, **changes.get("run", {})))
