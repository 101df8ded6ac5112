"""NeoBERT: a deep BERT-Base with rotary positions, SwiGLU, RMS norms and 20% [MASK].

    python -m bert_jax.train --config=configs/neobert.py --config.data.store=STORE --workdir=DIR

Slice: 64 chips and more (the paper's machine, quoted from memory: 8 H100).
Corpus: RefinedWeb, 600 billion tokens of English web text, in 30,522 uncased word pieces.
Expect (paper, quoted from memory): GLUE 89.0, with 250 million parameters. Not measured
with this code.

Source: Le Breton et al. 2025, sections 3 and 4; chandar-lab/NeoBERT, read in the fork
GabrielRuo/NeoBERT: conf/optimizer/adamw.yaml, conf/scheduler/cosine_decay.yaml (2,000 steps of
warm-up), src/neobert/scheduler (the rate falls to a tenth). Two million tokens per step follow from
2.1 trillion in 1,050,000 steps. Four things differ. The decoder is the word table, which makes 222
million parameters; there it is a table of its own. The rate falls to a tenth along a line until
the end; there along a cosine until step 900,000, and stays. Documents share a row and do not see
each other; there they do not share one. The texts of the second phase are the texts of the first,
there its longer ones.
"""

from bert_jax import config as c


def get_config() -> c.ConfigDict:
    """Return NeoBERT, in rows of 1,024 and then of 4,096."""
    model = c.ModelConfig(
        hidden_size=768,
        num_hidden_layers=28,
        num_attention_heads=12,
        intermediate_size=2048,
        hidden_act="silu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=4096,
        type_vocab_size=0,
        layer_norm_eps=1e-5,
        position_embedding_type="rotary",
        norm_position="pre",
        norm_type="rms_norm",
        embedding_norm=False,
        linear_bias=False,
        gated_mlp=True,
        mlm_transform=False,
    )
    return c.to_config_dict(
        c.Config(
            model=model,
            objective="mlm",
            phases=(  # two million tokens per step
                c.Phase(1024, 1_000_000, batch_size=2048),
                c.Phase(4096, 50_000, batch_size=512),
            ),
            data=c.PretrainOptions(
                segments="doc_sentences",
                masked_lm_prob=0.2,
                mask_token_share=1.0,
                random_token_share=0.0,
                short_seq_prob=0.0,
                packed_examples=16,
            ),
            optim=c.OptimConfig(
                name="adamw",
                learning_rate=1e-4,
                end_learning_rate=1e-5,
                warmup_steps=2000,
                decay_counts_warmup=False,
                beta2=0.95,
                epsilon=1e-8,
                weight_decay=0.01,
                clip_norm=1.0,
            ),
        )
    )
