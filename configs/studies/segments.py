"""What a row of text is made of: next sentences, swapped sentences, or one text and no pairs.

    python -m bert_jax.study --config=configs/studies/segments.py
        --config.store=runs/quickstart/store --workdir=DIR

NSP is BERT's, SOP ALBERT's, the other two RoBERTa's (its table 2). Each row is a BERT of
configs/quickstart.py.
"""

import ml_collections

from bert_jax import config as c
from bert_jax.config.study import StudyConfig, StudyRow

_SINGLE = "objective=mlm data.short_seq_prob=0.0"
_FLAGS = {
    "NSP": "",
    "SOP": "data.segments=sop",
    "full_sentences": f"{_SINGLE} data.segments=full_sentences",
    "doc_sentences": f"{_SINGLE} data.segments=doc_sentences",
}


def get_config() -> ml_collections.ConfigDict:
    """Four rows, three seeds."""
    rows = (
        StudyRow(name, config="configs/quickstart.py", flags=flags)
        for name, flags in _FLAGS.items()
    )
    return c.to_config_dict(StudyConfig(rows=tuple(rows)))
