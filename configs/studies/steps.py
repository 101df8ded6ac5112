"""The paper's figure 5: BERT and left to right, fine-tuned after more and more steps of one run.

    python -m bert_jax.study --config=configs/studies/steps.py
        --config.store=runs/quickstart/store --workdir=DIR
        --task="mnli configs/finetune/glue.py:task=mnli data.dir=DIR"

Rows of a step read the checkpoints of a row that trains; its own curve is in its folder
(curves.png). All rows are 64 tokens long and on one schedule, so that only the steps differ.
"""

import ml_collections

from bert_jax import config as c
from bert_jax.config.study import StudyConfig, StudyRow

_STEPS, _LAST = (200, 400, 800, 1200), 1600
_FLAGS = (
    f"phases[0].seq_len=64 phases[0].batch_size=48 phases[0].steps={_STEPS[-1]} "
    f"phases[1].steps={_LAST - _STEPS[-1]} phases[1].restart_learning_rate=0 "
    "phases[1].restart_warmup_steps=0 "
    f"checkpoint.every_steps={_STEPS[0]} checkpoint.keep={_LAST // _STEPS[0]}"
)


def get_config() -> ml_collections.ConfigDict:
    """Two rows that train, four checkpoints of each, three seeds."""
    rows = []
    for name, model in (("BERT", "bert"), ("LTR", "left_to_right")):
        place = f"configs/quickstart.py:model={model}"
        rows.append(StudyRow(name, config=place, flags=_FLAGS))
        rows += [
            StudyRow(f"{name}_{step}", kind="checkpoint", reads=name, flags=f"step={step}")
            for step in _STEPS
        ]
    return c.to_config_dict(StudyConfig(rows=tuple(rows)))
