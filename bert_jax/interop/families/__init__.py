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


def find_family(config: ModelConfig) -> Family | None:
    """Return the first family whose config.json can describe a model; None if none can."""
    return next((family for family in FAMILIES.values() if family.fits(config)), None)


__all__ = ["FAMILIES", "Family", "find_family"]
