"""Nine models of configs/quickstart.py, each with its own objective.

    python -m bert_jax.study --config=configs/studies/objectives.py
        --config.store=runs/quickstart/store --workdir=DIR
        --task="rte configs/finetune/glue.py:task=rte data.dir=DIR"

Give a task: losses of different objectives do not compare. Not measured with this
code.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

_MODELS = (
    *("bert", "roberta", "albert", "electra", "electra_gdes", "xlnet", "modernbert"),
    *("left_to_right", "causal_then_masked"),
)


def get_config() -> c.ConfigDict:
    """Build a row for each model; three seeds."""
    rows = tuple(StudyRow(name, config=f"configs/quickstart.py:model={name}") for name in _MODELS)
    return c.to_config_dict(StudyConfig(rows=rows))
