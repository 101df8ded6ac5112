"""BERT, BERT without next sentences, left to right, and ModernBERT on equal numbers of tokens.

    python -m bert_jax.study --config=configs/studies/quick.py
        --config.store=runs/quickstart/store --workdir=DIR

Two seeds of four models of configs/quickstart.py, with half its steps, so that two CPU cores do.

Measured (row study_quick of docs/results/studies.json): 16 min 25 s on two cores.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

_SHORT = "phases[0].steps=500 phases[1].steps=120"


def get_config() -> c.ConfigDict:
    """Build four rows; two seeds, no task."""
    rows = (
        StudyRow("BERT", config="configs/quickstart.py:model=bert", flags=_SHORT),
        StudyRow(
            "No_NSP", config="configs/quickstart.py:model=bert", flags=f"{_SHORT} objective=mlm"
        ),
        StudyRow("LTR_No_NSP", config="configs/quickstart.py:model=left_to_right", flags=_SHORT),
        StudyRow("ModernBERT", config="configs/quickstart.py:model=modernbert", flags=_SHORT),
    )
    return c.to_config_dict(StudyConfig(rows=rows, seeds=2))
