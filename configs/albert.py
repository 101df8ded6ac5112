"""ALBERT: one layer for all, a narrow embedding, sentence order (Lan et al. 2020).

    python -m bert_jax.train --config=configs/albert.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/albert.py:size=xxlarge

Slice: 64 chips, each with 16 rows at a time of Base and Large, 4 of xlarge and xxlarge, which
recompute their layers (the paper's: 64 to 512 v3).
Corpus: Wikipedia and books, 30,000 uncased SentencePiece pieces: --train_vocab=unigram
--vocab_size=30000.
Hours and dollars: Base 5 and $360, xxlarge 131 and $10,062 on 64 v5e chips, by the compiler's
estimate: python -m bert_jax.plan --config=configs/albert.py --topology=v5e:8x8
--config.model.vocab_size=30000, 2026-11-23, c30ecce.
Expect (paper, table 2): mean of five tasks Base 80.1, Large 82.4, xlarge 85.5, xxlarge 88.7; MNLI
81.6, 83.5, 86.4, 88.0. Not measured with this code.

Sizes: table 1. Sentence order in place of next sentences (3.1); spans of up to three words, n of
them in proportion to 1/n (4.1). Batch 4,096, 125,000 steps, LAMB at .00176 (4.1); warm-up of 3,125
steps: run_pretraining.py of google-research/albert; clip at 1: its optimization.py. No dropout: its
README, version 2, which also trained Base for 10 million steps and the others for 3, on more text.
LAMB here corrects the bias of its moments (You et al. 2020); its trust ratio cancels most of the
difference.
"""

import dataclasses

from bert_jax import config as c

BASE = c.ModelConfig(
    embedding_size=128,
    share_layers=True,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def grow(layers: int, width: int, heads: int) -> c.ModelConfig:
    """Return a larger ALBERT; the feed-forward part is four times as wide as the encoder."""
    return dataclasses.replace(
        BASE,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )


# Model, and rows that 64 chips take at a time.
SIZES = {
    "base": (BASE, 1024),
    "large": (grow(24, 1024, 16), 1024),
    "xlarge": (grow(24, 2048, 16), 256),
    "xxlarge": (grow(12, 4096, 64), 256),
}


def get_config(text: str = "") -> c.ConfigDict:
    """Return ALBERT; text follows the colon of --config=configs/albert.py:..."""
    size = c.arguments(text, size=("base", *SIZES))["size"]
    model, rows = SIZES[size]
    return c.to_config_dict(
        c.Config(
            model=model,
            data=c.PretrainOptions(segments="sop", masking="ngram"),
            phases=(c.Phase(512, 125_000, batch_size=4096, micro_batches=4096 // rows),),
            optim=c.OptimConfig(name="lamb", learning_rate=1.76e-3, warmup_steps=3125),
            compute=c.ComputeConfig(remat="layer" if rows == 256 else "none"),
        )
    )
