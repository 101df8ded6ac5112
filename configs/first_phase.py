"""The first phase of another config, and no more: what a ladder of small models trains.

    python -m bert_jax.train --config=configs/first_phase.py:configs/base.py ...
    python -m bert_jax.train --config=configs/first_phase.py:configs/quickstart.py:model=roberta ...

Give all settings that follow from the number of steps, as the warm-up. Expect: the held-out loss of
rows as long as that phase's, which a model of longer ones undercuts.
Not measured with this code.
"""

import dataclasses

from bert_jax import config as c
from bert_jax.config import overrides
from bert_jax.runtime.cli import find_config


def get_config(place: str = "configs/base.py") -> c.ConfigDict:
    """Keep one phase of the config at a place, FILE[:NAME=VALUE,...]."""
    config = overrides.load(c.Config, place, find_config, [])
    return c.to_config_dict(dataclasses.replace(config, phases=config.phases[:1]))
