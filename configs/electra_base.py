"""ELECTRA-Base: BERT-Base's size, which learns which tokens a generator has replaced.

    python -m bert_jax.train --config=configs/electra_base.py --config.data.store=STORE \
        --workdir=DIR
    ... --config=configs/electra_base.py:embeddings=gdes

Slice: 16 chips, as configs/base.py (the paper's machine: 16 TPUv3, 4 days).
Corpus: Wikipedia and books, 3.3 billion words, 30,522 uncased word pieces.
Expect (paper): GLUE 85.1, where BERT-Base has 82.2. Fine-tune with rate 1e-4,
config.optim.layer_rate_decay=0.8 and 3 epochs (10 for RTE and STS-B). Not yet measured with this
code.

Source: Clark et al. 2020, appendix A; google-research/electra configure_pretraining.py. Rows are
one segment; there a tenth are, the others are split into two at a random sentence. Positions are
masked without replacement; there with it.

embeddings=shared   generator and encoder have the same tables (the paper)
embeddings=gdes     the encoder's are the generator's plus its own difference (DeBERTaV3)
"""

import ml_collections

from bert_jax import config as c
from data_pipeline.spec.options import PretrainOptions


def get_config(text: str = "") -> ml_collections.ConfigDict:
    """ELECTRA-Base; text is what follows the colon of --config=configs/electra_base.py:..."""
    sharing = c.arguments(text, embeddings="shared")["embeddings"]
    if sharing not in ("shared", "gdes"):
        raise ValueError(f"embeddings is {sharing!r}; this config has ['gdes', 'shared']")
    return c.to_config_dict(
        c.Config(
            model=c.ModelConfig(
                generator_hidden_size=256,  # a third
                generator_embeddings=sharing,
                pooler_type="gelu_erf",  # of a fine-tuning
            ),
            objective="rtd",
            phases=(c.Phase(512, 766_000, batch_size=256),),
            data=PretrainOptions(
                segments="doc_sentences",
                mask_token_share=0.85,
                random_token_share=0.0,
                short_seq_prob=0.05,
            ),
            optim=c.OptimConfig(learning_rate=2e-4, warmup_steps=10_000),
        )
    )
