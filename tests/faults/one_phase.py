"""configs/tiny.py made smaller: one layer and one phase, which start in half the time."""

import dataclasses

from bert_jax.config import Config, ConfigDict, EvalConfig, Phase, settings_from, to_config_dict
from configs import tiny


def get_config() -> ConfigDict:
    """Return forty steps."""
    config = settings_from(Config, tiny.get_config())
    model = dataclasses.replace(
        config.model,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        max_position_embeddings=64,
    )
    return to_config_dict(
        dataclasses.replace(
            config,
            model=model,
            phases=(Phase(16, 40, batch_size=8, max_predictions_per_seq=3),),
            optim=dataclasses.replace(config.optim, warmup_steps=5),
            eval=EvalConfig(every_steps=100, examples=16),
        )
    )
