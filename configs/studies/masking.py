"""The paper's table 8: six mixes of [MASK], the same word and a random one.

    python -m bert_jax.study --config=configs/studies/masking.py
        --config.store=runs/quickstart/store --workdir=DIR

Each row is a BERT of configs/quickstart.py. The paper compares them on MNLI and on named entities:
add tasks of your own in a copy (config.tasks). All rows' masked words are scored with [MASK] alone.
"""

import ml_collections

from bert_jax import config as c
from bert_jax.config.study import StudyConfig, StudyRow

# Shares in percent of [MASK] and of a random word; the rest is kept. Source: paper, table 8.
_MIXES = ((80, 10), (100, 0), (80, 0), (80, 20), (0, 80), (0, 100))


def get_config() -> ml_collections.ConfigDict:
    """Six rows called by mask, same and random, three seeds."""
    rows = tuple(
        StudyRow(
            f"{mask}-{100 - mask - random}-{random}",
            config="configs/quickstart.py",
            flags=f"data.mask_token_share={mask / 100} data.random_token_share={random / 100}",
        )
        for mask, random in _MIXES
    )
    return c.to_config_dict(StudyConfig(rows=rows))
