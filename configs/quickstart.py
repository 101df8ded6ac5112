"""The smallest models worth looking at: learn from Python's own documentation on two CPU cores.

    make quickstart
    python -m bert_jax.train --config=configs/quickstart.py:model=electra \
        --config.data.store=runs/quickstart/store --workdir=DIR

The first builds the corpus and trains a BERT on it by the recipe `tuned`: 30% of the tokens are
masked in training, 15% in evaluation, and the optimizer is Muon with a weight decay of 0.3. The
second trains another of MODELS there, at the same size; `bert` has the paper's masking.
docs/guide/models.md has the losses of the others.

Measured (row quickstart of docs/results/training.json), seeds 1 to 5 of `tuned`: 4.245, 4.146,
4.255, 4.193 and 4.392 nats; steps take 0.91 of the time of `bert`'s on two cores.

Most of the steps see short sequences and few of them: in the same time there are more steps, and
the loss falls further (docs/experiments.md). The second phase teaches the positions that the first
one never saw, with a learning rate of its own: at the end of the first one's they hardly move.
"""

from typing import Any

from bert_jax import config as c

BERT = c.ModelConfig(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=64,
    initializer_range=0.09,  # roughly hidden_size ** -0.5
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
# Differences from the paper's BERT: config paths and values.
MODELS: dict[str, dict[str, Any]] = {
    "tuned": {
        "optim.name": "muon",
        "optim.weight_decay": 0.3,
        "data.masked_lm_prob": 0.3,
        "eval.masked_lm_prob": 0.15,
    },
    "bert": {},
    "roberta": {
        "objective": "mlm",
        "model.hidden_act": "gelu_erf",
        "model.type_vocab_size": 1,
        "data.segments": "full_sentences",
        "data.short_seq_prob": 0.0,
    },
    "albert": {
        "model.embedding_size": 64,
        "model.share_layers": True,
        "data.segments": "sop",
        "data.masking": "ngram",
    },
    "electra": {
        "objective": "rtd",
        "model.generator_hidden_size": 16,
        "model.head_act": "gelu_erf",
        "data.segments": "doc_sentences",
        "data.short_seq_prob": 0.05,
        "data.mask_token_share": 0.85,
        "data.random_token_share": 0.0,
    },
    "modernbert": {
        "objective": "mlm",
        "model.hidden_act": "gelu_erf",
        "model.intermediate_size": 336,  # gated: as many weights as 512 without a gate
        "model.type_vocab_size": 0,
        "model.position_embedding_type": "rotary",
        "model.local_attention": 16,
        "model.global_attn_every_n_layers": 2,
        "model.norm_position": "pre",
        "model.norm_bias": False,
        "model.linear_bias": False,
        "model.gated_mlp": True,
        "model.initializer": "megatron",
        "data.segments": "doc_sentences",
        "data.short_seq_prob": 0.0,
        "data.masked_lm_prob": 0.3,
        "eval.masked_lm_prob": 0.15,
    },
    "xlnet": {
        "objective": "permutation",
        "model.hidden_act": "gelu_erf",
        "model.type_vocab_size": 0,
        "model.position_embedding_type": "relative",
        "model.embedding_norm": False,
        "model.mlm_transform": False,
        "data.masked_lm_prob": 1 / 6,
        "data.masking": "ngram",
        "data.longest_ngram": 5,
    },
    "left_to_right": {"objective": "causal"},
    "causal_then_masked": {
        "objective": "mlm",
        "data.segments": "full_sentences",
        "data.short_seq_prob": 0.0,
    },
}
MODELS["electra_gdes"] = MODELS["electra"] | {"model.generator_embeddings": "gdes"}
# RATES: peak learning rate of both phases if not 3e-3. OTHER_PHASES: steps, rows per step and
# warm-up of both phases if not PHASES. `tuned` reads fewer rows, as Muon multiplies matrices too.
# All others read the same number of rows; ELECTRA takes more steps, since with fewer, or at 3e-3,
# its encoder hardly detects a replaced token.
RATES = {"tuned": 8e-3, "electra": 1e-3, "electra_gdes": 1e-3}
PHASES = ((1000, 96, 100), (240, 48, 30))
OTHER_PHASES = {
    "tuned": ((680, 96, 50), (164, 48, 20)),
    "electra": ((4000, 24, 400), (960, 12, 120)),
}
OTHER_PHASES["electra_gdes"] = OTHER_PHASES["electra"]
FIRST_OBJECTIVE = {"causal_then_masked": "causal"}  # first phase, if not the run's objective


def get_config(text: str = "") -> c.ConfigDict:
    """Return two layers, two short phases; Muon for `tuned`, else AdamW. text follows the colon."""
    name = c.arguments(text, model=("tuned", *MODELS))["model"]
    rate = RATES.get(name, 3e-3)
    (steps, rows, warmup), (steps_64, rows_64, warmup_64) = OTHER_PHASES.get(name, PHASES)
    config = c.to_config_dict(
        c.Config(
            model=BERT,
            phases=(
                c.Phase(32, steps, batch_size=rows, objective=FIRST_OBJECTIVE.get(name, "")),
                c.Phase(
                    64,
                    steps_64,
                    batch_size=rows_64,
                    restart_learning_rate=rate,
                    restart_warmup_steps=warmup_64,
                ),
            ),
            optim=c.OptimConfig(name="adamw", learning_rate=rate, warmup_steps=warmup, beta2=0.98),
            eval=c.EvalConfig(every_steps=steps // 5, examples=1024),
            checkpoint=c.CheckpointConfig(every_steps=steps * 2 // 5),
            log_every_steps=steps // 25,
        )
    )
    config.update_from_flattened_dict(MODELS[name])
    return config
