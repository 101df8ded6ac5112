"""A BERT small enough for a laptop: 400 steps in a few minutes on two CPU cores.

python -m bert_jax.train --config=configs/tiny.py --config.data.store=STORE --workdir=DIR
"""

import dataclasses

import ml_collections

from bert_jax.config import (
    CheckpointConfig,
    Config,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    Phase,
    to_config_dict,
)


def get_config() -> ml_collections.ConfigDict:
    """Two layers, two short phases, a rate that a small model can take."""
    return to_config_dict(
        dataclasses.replace(
            Config(),
            model=ModelConfig(
                hidden_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=512,
                max_position_embeddings=128,
            ),
            phases=(
                Phase(64, 340, batch_size=64, max_predictions_per_seq=10),
                Phase(128, 60, batch_size=32, max_predictions_per_seq=20),
            ),
            optim=OptimConfig(learning_rate=2e-3, warmup_steps=40),
            eval=EvalConfig(every_steps=100, examples=512),
            checkpoint=CheckpointConfig(every_steps=100),
            log_every_steps=20,
        )
    )
