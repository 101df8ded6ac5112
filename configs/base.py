"""BERT-Base, the paper's recipe, on 16 TPU chips.

    python -m bert_jax.train --config=configs/base.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/base.py:recipe=tokens
    ... --config.data.packed_examples=8 '--config.phases[1].batch_size=128'

The last one packs up to eight examples into each row, which the paper did not, and takes half as
many rows at 512: about as many examples per step as one in each of 256.

Slice: 16 chips (the paper's 4 Cloud TPUs were v2-32; today v5litepod-16 or v4-32).
Corpus: Wikipedia and books, 3.3 billion words, 30,522 uncased word pieces.
Expect (paper): 4 days on its machine, held-out perplexity 3.99, next sentence 97-98%, GLUE 79.6.
Not measured with this code.

recipe=paper    batch 256 throughout: 900k steps at 128, 100k at 512 (appendix A.2; the README
                of google-research/bert for the split)
recipe=tokens   131k tokens in every step: batch 1024 at 128, 256 at 512; the reading under which
                the paper's "40 epochs" holds
"""

from bert_jax import config as c


def get_config(text: str = "") -> c.ConfigDict:
    """Return BERT-Base; text follows the colon of --config=configs/base.py:..."""
    recipe = c.arguments(text, recipe=("paper", "tokens"))["recipe"]
    phases = (
        c.Phase(128, 900_000, batch_size={"paper": 256, "tokens": 1024}[recipe]),
        c.Phase(512, 100_000, batch_size=256),
    )
    return c.to_config_dict(c.Config(phases=phases))
