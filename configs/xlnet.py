"""XLNet without its memory: targets in a random order, read by two streams.

    python -m bert_jax.train --config=configs/xlnet.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/xlnet.py:size=large

Slice: 16 chips for Base, 64 chips for Large, each with 4 rows at a time. Attention is plain: the
TPU kernel has no relative positions.
Corpus: Base: Wikipedia and books; Large: 33 billion pieces, cased SentencePiece of 32,000.
Expect (Yang et al. 2019, appendix A.1, Large on BERT's corpus): MNLI 88.4, SQuAD 1.1 F1 94.0,
RACE 75.1. Not measured with this code.

size=base   BERT-Base's size and batch, as the paper's ablations (section 3.4), at length 512
size=large  500,000 steps of 8,192 sequences of 512 (section 3.1, appendix A.4); the README of
            zihangdai/xlnet has 2,048

Not the paper's: rows begin with [CLS], no memory of the text before (384 tokens there), no rows
read from the right.
"""

import dataclasses

from bert_jax import config as c

SIZES = {
    "base": c.ModelConfig(),
    "large": c.ModelConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
}


def get_config(text: str = "") -> c.ConfigDict:
    """Return XLNet; text follows the colon of --config=configs/xlnet.py:..."""
    size = c.arguments(text, size=("base", *SIZES))["size"]
    rows, micro_batches = {"base": (256, 1), "large": (8192, 32)}[size]
    return c.to_config_dict(
        c.Config(
            model=dataclasses.replace(
                SIZES[size],
                hidden_act="gelu_erf",
                type_vocab_size=0,
                position_embedding_type="relative",
                embedding_norm=False,
                mlm_transform=False,
            ),
            objective="permutation",
            phases=(c.Phase(512, 500_000, batch_size=rows, micro_batches=micro_batches),),
            # Appendix A.4.1: K = 6, spans of 1 to 5 words.
            data=c.PretrainOptions(masked_lm_prob=1 / 6, masking="ngram", longest_ngram=5),
            optim=c.OptimConfig(learning_rate=4e-4, warmup_steps=40_000, decay_counts_warmup=False),
        )
    )
