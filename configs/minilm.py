"""MiniLMv2: 6 layers of 384 that learn how the tokens of a teacher relate (Wang et al. 2021).

    python -m bert_jax.train --config=configs/minilm.py --config.data.store=STORE --workdir=DIR
    ... --config.teacher=TEACHER --config.distill.teacher_layer=21

The first learns from the last layer of bert-base-uncased, downloaded from the Hugging Face hub
(extra [hub]); the second from layer 21 of TEACHER, a BERT-Large: hf:DIR, google:PREFIX or the
workdir of a run. Build STORE with the teacher's vocabulary, --vocab=DIR/vocab.txt. The student
begins with fresh weights; its MLM head is not trained: exports are encoders alone.

Slice: 8 chips (the paper's machine, quoted from memory: 8 V100). Memory: the relations of 48 heads,
float32[B,48,512,512] of the rows of a micro-batch, and the teacher's weights; 4.1 of
15.75 GiB per chip of v5e:2x4.
Hours and dollars: 24 and $228 on 8 v5e chips, at 10.8% of their peak, by the compiler's
estimate of 2026-11-23, which leaves out reading, evaluating and saving: python -m bert_jax.plan
--config=configs/minilm.py --topology=v5e:2x4 --config.teacher=TEACHER
Corpus: the teacher's; the paper's is BERT's, Wikipedia and books.
Expect (paper, table 2): MNLI-m 82.8, fine-tuned, where BERT-Base has 84.5. The figures are quoted
from memory. Not measured with this code.

Source: section 3.1 for the loss, 4.1 for the settings. Verified in the public code of a
reproduction (bloomberg/minilmv2.bb, run.sh): 48 relation heads of layer 12, 256 rows, AdamW at 6e-4
with epsilon 1e-6, 400,000 steps, warm-up of 4,000. Quoted from memory: rows of 512, dropout of 0.1,
64 heads of layer 21 for BERT-Large.
"""

from bert_jax import config as c

TEACHER = "hf:google-bert/bert-base-uncased"


def get_config() -> c.ConfigDict:
    """Return six layers of 384, heads of 32."""
    return c.to_config_dict(
        c.Config(
            teacher=TEACHER,
            objective="relation_distillation",
            data=c.PretrainOptions(segments="full_sentences", short_seq_prob=0.0),
            distill=c.DistillConfig(relation_heads=48),
            model=c.ModelConfig(
                hidden_size=384,
                num_hidden_layers=6,
                num_attention_heads=12,
                intermediate_size=1536,
                hidden_act="gelu_erf",
            ),
            phases=(c.Phase(512, 400_000, batch_size=256, micro_batches=2),),
            optim=c.OptimConfig(
                name="adamw", learning_rate=6e-4, warmup_steps=4000, decay_counts_warmup=False
            ),
        )
    )
