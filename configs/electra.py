"""ELECTRA: an encoder that learns which tokens a generator has replaced (Clark et al. 2020).

    python -m bert_jax.train --config=configs/electra.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/electra.py:size=base,embeddings=gdes

Slice: Small one chip or GPU (the paper's machine: one V100 for 4 days); Base 16 chips, as
configs/base.py (16 TPUv3, 4 days).
Corpus: Wikipedia and books, 3.3 billion words, 30,522 uncased word pieces.
Expect (paper): GLUE 79.9 Small, where a BERT of its size and compute has 75.1; 85.1 Base, where
BERT-Base has 82.2. Fine-tune with configs/finetune/electra.py. Not measured with this code.

Source: Clark et al. 2020, appendix A; google-research/electra configure_pretraining.py. Rows are
one segment; there a tenth are, the others are split into two at a random sentence. Positions are
masked without replacement; there with it.

embeddings=shared   generator and encoder have the same tables (the paper)
embeddings=gdes     the encoder's are the generator's plus its own difference (DeBERTaV3)
"""

import dataclasses

from bert_jax import config as c

SMALL = c.ModelConfig(
    hidden_size=256,
    num_attention_heads=4,
    intermediate_size=1024,
    embedding_size=128,
    generator_hidden_size=64,
    head_act="gelu_erf",  # Hugging Face's generator has no other
    pooler_type="gelu_erf",  # used in fine-tuning
)
BASE = c.ModelConfig(
    generator_hidden_size=256,  # a third of the encoder's
    head_act="gelu_erf",
    pooler_type="gelu_erf",
)
# Model, phase, peak learning rate.
SIZES = {
    "small": (SMALL, c.Phase(128, 1_000_000, batch_size=128), 5e-4),
    "base": (BASE, c.Phase(512, 766_000, batch_size=256), 2e-4),
}


def get_config(text: str = "") -> c.ConfigDict:
    """Return ELECTRA; text follows the colon of --config=configs/electra.py:..."""
    chosen = c.arguments(text, size=("small", *SIZES), embeddings=("shared", "gdes"))
    size, sharing = chosen["size"], chosen["embeddings"]
    model, phase, rate = SIZES[size]
    return c.to_config_dict(
        c.Config(
            model=dataclasses.replace(model, generator_embeddings=sharing),
            objective="rtd",
            phases=(phase,),
            data=c.PretrainOptions(
                segments="doc_sentences",
                mask_token_share=0.85,
                random_token_share=0.0,
                short_seq_prob=0.05,
            ),
            optim=c.OptimConfig(learning_rate=rate, warmup_steps=10_000),
        )
    )
