"""Describe encoders of transformers: their config.json, the names of their arrays, their classes.

In: a config.json, or one of our paths. Out: a ModelConfig, or the name of an array. A family is a
file; `FAMILIES` lists them. Read family (what each declares), then bert and the others.
"""

from bert_jax.config import ModelConfig
from bert_jax.interop.families import albert, bert, distilbert, electra, modernbert, roberta, xlnet
from bert_jax.interop.families.family import Family

FAMILIES: dict[str, Family] = {
    module.FAMILY.model_type: module.FAMILY
    for module in (bert, modernbert, roberta, albert, electra, distilbert, xlnet)
}


def find_family(config: ModelConfig, pad_id: int = 0) -> Family | None:
    """Return the family whose config.json can describe an encoder; None if none can.

    pad_id is the vocabulary's: RoBERTa counts positions from it, and fits where it is RoBERTa's.
    """
    fitting = [
        family
        for family in FAMILIES.values()
        if family.pad_id in (None, pad_id) and family.fits(config)
    ]
    return max(fitting, key=lambda family: family.pad_id is not None, default=None)


__all__ = ["FAMILIES", "Family", "find_family"]
