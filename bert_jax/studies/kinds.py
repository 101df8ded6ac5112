"""List the kinds of rows: a name in StudyRow.kind, and the RowKind that trains and scores it."""

from bert_jax.config.study import StudyRow
from bert_jax.studies import baselines, pretrained
from bert_jax.studies.row_kind import RowKind

KINDS: dict[str, RowKind] = {
    "pretrain": pretrained.PRETRAIN,
    "checkpoint": pretrained.CHECKPOINT,
    "untrained": pretrained.UNTRAINED,
    "given": pretrained.GIVEN,
    "frozen": pretrained.FROZEN,
    "counts": baselines.COUNTS_ROW,
    "skipgram": baselines.SKIPGRAM_ROW,
    "bilm": baselines.BILM_ROW,
    "taglm": baselines.TAGLM_ROW,
}
# Measures of an objective -> what the rows that have it do.
OWN_MEASURES = pretrained.OWN_MEASURES | baselines.OWN_MEASURES


def kind_of(row: StudyRow) -> RowKind:
    """Return the kind of a row; ValueError if there is none of that name."""
    if row.kind not in KINDS:
        raise ValueError(f"its kind is {row.kind!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[row.kind]
