"""List the kinds of rows by their name in StudyRow.kind."""

from bert_jax.lab.row_kinds import baseline_rows, pretrained
from bert_jax.lab.row_kinds.row_kind import RowKind
from bert_jax.lab.study_config import StudyRow
from data_pipeline.io.refused import Refused

KINDS: dict[str, RowKind] = {
    "pretrain": pretrained.PRETRAIN,
    "rung": pretrained.RUNG,
    "checkpoint": pretrained.CHECKPOINT,
    "untrained": pretrained.UNTRAINED,
    "given": pretrained.GIVEN,
    "frozen": pretrained.FROZEN,
    "counts": baseline_rows.COUNTS_ROW,
    "skipgram": baseline_rows.SKIPGRAM_ROW,
    "bilm": baseline_rows.BILM_ROW,
    "taglm": baseline_rows.TAGLM_ROW,
}
# A measure of one objective -> the task that rows with the measure learn, in words.
OWN_MEASURES = pretrained.OWN_MEASURES | baseline_rows.OWN_MEASURES


def find_kind(row: StudyRow) -> RowKind:
    """Return the kind of a row; raise Refused if the name is unknown."""
    if row.kind not in KINDS:
        raise Refused(f"its kind is {row.kind!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[row.kind]
