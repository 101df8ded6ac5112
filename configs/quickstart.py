"""The smallest BERT worth looking at: learns from Python's own documentation on two CPU cores.

    make quickstart

builds its corpus and trains on it. Expect: docs/results.md has its time and its held-out loss
beside the unigram baseline.

Most of the steps see short sequences and few of them: in the same time there are more steps, and
the loss falls further (docs/experiments.md). The second phase teaches the positions that the first
one never saw, with a learning rate of its own: at the end of the first one's they hardly move.
"""

import ml_collections

from bert_jax import config as c


def get_config(text: str = "") -> ml_collections.ConfigDict:
    """Two layers, two short phases, bias-corrected Adam as in tiny.py; no arguments."""
    c.arguments(text)
    return c.to_config_dict(
        c.Config(
            model=c.ModelConfig(
                hidden_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=512,
                max_position_embeddings=64,
                initializer_range=0.09,  # about hidden_size ** -0.5
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            phases=(
                c.Phase(32, 1000, batch_size=96),
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
    )
