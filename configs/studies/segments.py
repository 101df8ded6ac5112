"""Segments of a row: next sentences, swapped sentences, or a single segment without pairs.

    python -m bert_jax.study --config=configs/studies/segments.py
        --config.store=runs/quickstart/store --workdir=DIR

NSP is BERT's, SOP ALBERT's, the other two RoBERTa's (its table 2). Each row is a BERT of
configs/quickstart.py. Not measured with this code.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

_SINGLE = "objective=mlm data.short_seq_prob=0.0"
# Name -> flags, and SQuAD 2.0, MNLI-m, SST-2, RACE. Source: RoBERTa, table 2.
_ROWS = {
    "NSP": ("", "78.7 84.0 92.9 64.2"),
    "SOP": ("data.segments=sop", ""),
    "full_sentences": (f"{_SINGLE} data.segments=full_sentences", "79.1 84.7 92.5 64.8"),
    "doc_sentences": (f"{_SINGLE} data.segments=doc_sentences", "79.7 84.7 92.7 65.6"),
}
_PAPER = "RoBERTa, table 2: SQuAD2 MNLI SST-2 RACE"


def get_config() -> c.ConfigDict:
    """Build four rows; three seeds."""
    rows = (
        StudyRow(name, config="configs/quickstart.py:model=bert", flags=flags, paper=figures)
        for name, (flags, figures) in _ROWS.items()
    )
    return c.to_config_dict(StudyConfig(rows=tuple(rows), paper=_PAPER))
