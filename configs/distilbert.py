"""DistilBERT: a student with every second layer of its teacher (Sanh et al. 2019).

    python -m bert_jax.train --config=configs/distilbert.py --config.data.store=STORE --workdir=DIR
    ... --config.teacher=TEACHER --config.init=TEACHER

The first learns from bert-base-uncased, downloaded from the Hugging Face hub (extra [hub]); the
second from any checkpoint of 12 layers: hf:DIR, google:PREFIX or the workdir of a run. Build STORE
with the teacher's vocabulary, --vocab=DIR/vocab.txt.

Slice: 16 chips (the paper's machine: 8 V100 for 90 hours). Memory, with the teacher's weights: 2.2
of 15.75 GiB per chip of v5e:4x4.
Hours and dollars: 0.91 and $17.50 on 16 v5e chips, at 64.0% of their peak, by the compiler's
estimate of 2026-11-23, which leaves out reading, evaluating and saving: python -m bert_jax.plan
--config=configs/distilbert.py --topology=v5e:4x4 --config.teacher=TEACHER --config.init=TEACHER
Corpus: the teacher's; the paper's is BERT's, Wikipedia and books.
Expect (paper, table 1, dev sets): GLUE 77.0, where BERT-Base has 79.5, with 40% fewer parameters.
Not measured with this code.

Source: section 3 for layers, batches "up to 4K" and no next sentences; train.py and distiller.py
of transformers' research projects for weights 5, 2 and 1, temperature 2, AdamW at 5e-4 with
epsilon 1e-6 and beta2 0.98, no weight decay, warm-up of a twentieth, clip at 5, three passes, which
are 6,300 steps of BERT's corpus, and masks in proportion to count^-0.7. Three things differ: there
masks are shared out over the batch, here each row has its 15%; there all tokens learn the teacher's
predictions, here the masked ones; there positions keep the teacher's vectors.
"""

from bert_jax import config as c

TEACHER = "hf:google-bert/bert-base-uncased"


def get_config() -> c.ConfigDict:
    """Return six layers of 768 without segments."""
    return c.to_config_dict(
        c.Config(
            init=TEACHER,
            init_layers="0,2,4,7,9,11",
            teacher=TEACHER,
            objective="distillation",
            data=c.PretrainOptions(
                segments="full_sentences", short_seq_prob=0.0, masked_lm_smoothing=0.7
            ),
            model=c.ModelConfig(num_hidden_layers=6, type_vocab_size=0, pooler_type="relu"),
            phases=(c.Phase(512, 6_300, batch_size=4096, micro_batches=16),),
            optim=c.OptimConfig(
                name="adamw",
                learning_rate=5e-4,
                warmup_steps=315,
                decay_counts_warmup=False,
                beta2=0.98,
                weight_decay=0.0,
                clip_norm=5.0,
            ),
            eval=c.EvalConfig(every_steps=300),
        )
    )
