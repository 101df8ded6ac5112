"""A BERT small enough for a laptop: 400 steps in a few minutes on two CPU cores.

    python -m bert_jax.train --config=configs/tiny.py --config.data.store=STORE --workdir=DIR

Measured (row tiny of docs/results/training.json): 5.982 nats on 18 novels, where word frequencies
have 6.471; 185 s in steps on two cores.

The paper's settings are for a large model and a million steps; in 400 they stay at the unigram
loss. docs/experiments.md (2026-11-21) says what is different here, and why.
"""

from bert_jax import config as c


def get_config() -> c.ConfigDict:
    """Return two layers, two short phases and a short warm-up."""
    return c.to_config_dict(
        c.Config(
            model=c.ModelConfig(
                hidden_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=512,
                max_position_embeddings=128,
                initializer_range=0.09,  # roughly hidden_size ** -0.5
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            phases=(
                c.Phase(64, 340, batch_size=96),
                c.Phase(128, 60, batch_size=48),
            ),
            optim=c.OptimConfig(name="adamw", learning_rate=3e-3, warmup_steps=40, beta2=0.98),
            eval=c.EvalConfig(every_steps=100, examples=512),
            checkpoint=c.CheckpointConfig(every_steps=100),
            log_every_steps=20,
        )
    )
