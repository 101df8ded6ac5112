"""List the kinds of rows by their name in StudyRow.kind."""

from bert_jax.config.study import StudyRow
from bert_jax.lab import baselines, pretrained
from bert_jax.lab.row_kind import RowKind
from data_pipeline.io.refused import Refused

KINDS: dict[str, RowKind] = {
    "pretrain": pretrained.PRETRAIN,
    "rung": pretrained.RUNG,
    "checkpoint": pretrained.CHECKPOINT,
    "untrained": pretrained.UNTRAINED,
    "given": pretrained.GIVEN,
    "frozen": pretrained.FROZEN,
    "counts": baselines.COUNTS_ROW,
    "skipgram": baselines.SKIPGRAM_ROW,
    "bilm": baselines.BILM_ROW,
    "taglm": baselines.TAGLM_ROW,
}
# A measure of one objective -> what the rows that have it do.
OWN_MEASURES = pretrained.OWN_MEASURES | baselines.OWN_MEASURES


def find_kind(row: StudyRow) -> RowKind:
    """Return the kind of a row; raise Refused if the name is unknown."""
    if row.kind not in KINDS:
        raise Refused(f"its kind is {row.kind!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[row.kind]
