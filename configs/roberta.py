"""RoBERTa: BERT's model on masked words alone, longer and in larger batches (Liu et al. 2019).

    python -m bert_jax.train --config=configs/roberta.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/roberta.py:size=large
    ... --config.data.segments=doc_sentences

Slice: 64 chips, each with 16 rows at a time (the paper's machine: 1,024 V100).
Corpus: 160 GB of cased English text in 50,265 byte-level pieces: data_pipeline.build
--vocab=vocab.json of a RoBERTa, or --train_vocab=byte_bpe --vocab_size=50265 --lowercase=false.
Hours and dollars: Base 41 and $3,154 on 64 v5e chips, by the compiler's estimate: python -m
bert_jax.plan --config=configs/roberta.py --topology=v5e:8x8 --config.model.vocab_size=30000,
2026-11-23, c30ecce.
Expect (README of fairseq's examples/roberta, dev sets): Base MNLI-m 87.6, SST-2 94.8, RTE 78.7;
Large 90.2, 96.4, 86.6. Not measured with this code.

Settings are from the paper's table 9 but for what follows. Batch: "8k" is read as 8,192.
Sequences are full ones from the first step on, across documents (section 4.2), with new masks each
time (4.1). Exact gelu, epsilon 1e-5 of the norms and the decay from the end of the warm-up are
fairseq's. One segment type, as in transformers; the run exports as a BERT of that kind, since the
class RobertaModel reads a vocabulary whose [PAD] is id 1.
"""

import dataclasses

from bert_jax import config as c

BASE = c.ModelConfig(hidden_act="gelu_erf", layer_norm_eps=1e-5, type_vocab_size=1)
LARGE = dataclasses.replace(
    BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)
# Model, peak learning rate, warm-up steps.
SIZES = {"base": (BASE, 6e-4, 24_000), "large": (LARGE, 4e-4, 30_000)}


def get_config(text: str = "") -> c.ConfigDict:
    """Return RoBERTa; text follows the colon of --config=configs/roberta.py:..."""
    size = c.arguments(text, size=("base", *SIZES))["size"]
    model, rate, warmup_steps = SIZES[size]
    return c.to_config_dict(
        c.Config(
            model=model,
            objective="mlm",
            data=c.PretrainOptions(segments="full_sentences", short_seq_prob=0.0),
            phases=(c.Phase(512, 500_000, batch_size=8192, micro_batches=8),),
            optim=c.OptimConfig(
                name="adamw",
                learning_rate=rate,
                warmup_steps=warmup_steps,
                decay_counts_warmup=False,
                beta2=0.98,
                clip_norm=0.0,
            ),
        )
    )
