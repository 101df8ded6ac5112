"""Describe encoders of transformers: their config.json, the names of their arrays, their classes.

In: a config.json, or one of our paths. Out: a ModelConfig, or the name of an array. A family is a
file; `FAMILIES` lists them. Read family (what each declares), then bert and the others.
"""

from bert_jax.config import ModelConfig
from bert_jax.interop.families import (
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    modernbert,
    roberta,
    xlnet,
)
from bert_jax.interop.families.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(bert.FAMILY, modernbert.FAMILY, roberta.FAMILY, roberta.XLM_ROBERTA, roberta.CAMEMBERT),
        *(albert.FAMILY, electra.FAMILY, distilbert.FAMILY, xlnet.FAMILY, deberta.FAMILY),
    )
}


def find_family(config: ModelConfig, pad_id: int = 0, vocabulary_kind: str = "") -> Family | None:
    """Return the family whose config.json can describe an encoder; None if none can.

    pad_id and vocabulary_kind describe the vocabulary: RoBERTa, which counts positions from the
    padding's id, fits only RoBERTa's pad_id; with SentencePiece's pieces in a tokenizer.json the
    family is XLM-RoBERTa. The kind is empty for a vocabulary in another file.
    """
    fitting = [
        family
        for family in FAMILIES.values()
        if family.names.pad_id in (None, pad_id)
        and family.vocabulary_kind in ("", vocabulary_kind)
        and family.fits(config)
    ]

    def count_demands(family: Family) -> int:
        return (family.names.pad_id is not None) + bool(family.vocabulary_kind)

    return max(fitting, key=count_demands, default=None)
