"""BERT paper, table 8: six mixes of [MASK], the same word and a random word.

    python -m bert_jax.study --config=configs/studies/masking.py
        --config.store=runs/quickstart/store --workdir=DIR
        --task="ner configs/finetune/ner.py data.dir=DIR"
    ... --config=configs/studies/masking.py:frozen=True

Each row is a BERT of configs/quickstart.py, called by its percentages, as 80-10-10. The paper
compares them on MNLI and on named entities, fine-tuned and as frozen vectors; frozen=True adds the
frozen rows. Masked words are scored with [MASK] alone in all rows.

Measured (row study_masks of docs/results/studies.json): 2 h 10 min on two cores.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

# Percent of [MASK] and of a random word, the rest is kept -> MNLI, NER fine-tuned, NER frozen.
# Source: paper, table 8.
_MIXES = {
    (80, 10): "84.2 95.4 94.9",
    (100, 0): "84.3 94.9 94.0",
    (80, 0): "84.4 95.2 94.7",
    (80, 20): "84.1 95.2 94.6",
    (0, 80): "83.7 94.8 94.6",
    (0, 100): "83.6 94.9 94.6",
}
_TAGGER = "units=128"  # the encoder's width; the paper has 768 units at a width of 768
_PAPER = "paper, table 8: MNLI NER frozen"


def get_config(text: str = "") -> c.ConfigDict:
    """Build six rows called MASK-SAME-RANDOM, and six frozen ones with frozen=True; three seeds."""
    has_frozen = c.arguments(text, frozen=("False", "True"))["frozen"] == "True"
    rows = []
    for (mask, random), figures in _MIXES.items():
        name = f"{mask}-{100 - mask - random}-{random}"
        flags = f"data.mask_token_share={mask / 100} data.random_token_share={random / 100}"
        rows.append(
            StudyRow(name, config="configs/quickstart.py:model=bert", flags=flags, paper=figures)
        )
        if has_frozen:
            rows.append(StudyRow(f"{name}_frozen", kind="frozen", reads=name, tagger=_TAGGER))
    return c.to_config_dict(StudyConfig(rows=tuple(rows), paper=_PAPER))
