"""Ettin: ModernBERT's shape in six sizes, from 17 million to a billion parameters.

    python -m bert_jax.train --config=configs/ettin.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/ettin.py:size=17m,tokens=20_000_000_000

The last one is the same run with every phase and ramp scaled down to 20 billion tokens, from two
trillion: batch sizes, rates and shares of the phases stay.

Slice: 64 or 128 chips (the paper's machine for 150m: 4 H100, 470 h). Each of 64 has up to 12 rows
of 1,024 or 2 of 8,192 at a time; whether 400m and 1b fit so is for bert_jax.plan to say.
Corpus: 2 trillion open tokens of English web text, code and papers, in 50,368 byte-level pieces:
data_pipeline.build --train_vocab=byte_bpe --vocab_size=50368 --lowercase=false. The original
changes its corpus with each phase; one run here has one store.
Expect (model card): GLUE 88.9 for 150m, where ModernBERT-Base has 88.4; 90.8 for 400m. Not
measured with this code.

Source of sizes, batches, tokens and rates: Weller et al. 2025; pretraining/configs/standard of
JHU-CLSP/ettin-encoder-vs-decoder, and the table of sizes in its pretraining/README.md@321d8ee. The
published weights have not been tried with this code. Five things differ: the batch grows from 768
rows (there from one device's 24 to 144), texts share rows (there each has its own), long rows have
8,192 tokens (there 7,999), no special token is masked, and 1b has the tokens of the others (there a
third of them in the last two phases).
"""

import dataclasses

from bert_jax import config as c

SHAPE = c.ModelConfig(
    hidden_act="gelu_erf",
    max_position_embeddings=8192,
    layer_norm_eps=1e-5,
    local_attention=128,
    global_attn_every_n_layers=3,
    **c.MODERNBERT,
)
BILLION = 10**9
SHORT_TOKENS, LONG_TOKENS, DECAY_TOKENS = 1700 * BILLION, 250 * BILLION, 50 * BILLION
PAPER_TOKENS = SHORT_TOKENS + LONG_TOKENS + DECAY_TOKENS
LONG_THETA = 160_000.0
FIRST_ROWS, ROWS = 768, 4608


@dataclasses.dataclass(frozen=True)
class Size:
    """Set what differs between the sizes; tokens are counts of the paper's run."""

    layers: int
    width: int
    units: int  # feed-forward width
    heads: int
    rate: float
    weight_decay: float
    ramp_tokens: int
    warmup_tokens: int


SIZES = {
    "17m": Size(7, 256, 384, 4, 3e-3, 3e-4, 125 * BILLION, 4 * BILLION),
    "32m": Size(10, 384, 576, 6, 3e-3, 3e-4, 100 * BILLION, 4 * BILLION),
    "68m": Size(19, 512, 768, 8, 3e-3, 3e-4, 75 * BILLION, 3 * BILLION),
    "150m": Size(22, 768, 1152, 12, 8e-4, 1e-5, 50 * BILLION, 3 * BILLION),
    "400m": Size(28, 1024, 2624, 16, 5e-4, 1e-5, 10 * BILLION, 2 * BILLION),
    "1b": Size(28, 1792, 3840, 28, 5e-4, 5e-5, 3 * BILLION, 2 * BILLION),
}


def get_config(text: str = "") -> c.ConfigDict:
    """Return Ettin; text follows the colon of --config=configs/ettin.py:..."""
    chosen = c.arguments(text, size=("150m", *SIZES), tokens=PAPER_TOKENS)
    size, share = SIZES[chosen["size"]], chosen["tokens"] / PAPER_TOKENS

    def steps(tokens: float, seq_len: int) -> int:
        return max(1, round(tokens * share / (ROWS * seq_len)))

    ramp_tokens = round(size.ramp_tokens * share)
    grown = steps(SHORT_TOKENS - size.ramp_tokens, 1024)
    short = c.Phase(1024, grown, batch_size=ROWS, micro_batches=6, masked_lm_prob=0.3)
    long = c.Phase(
        8192,
        steps(LONG_TOKENS, 8192),
        batch_size=ROWS,
        micro_batches=36,
        restart_learning_rate=size.rate,
        restart_decay="one_minus_sqrt",
        restart_end_learning_rate=size.rate * 0.5,
        masked_lm_prob=0.3,
        global_rope_theta=LONG_THETA,
        # In their code, local attention takes the global RoPE base unless de_decay/ sets one (17m).
        local_rope_theta=0.0 if chosen["size"] == "17m" else LONG_THETA,
    )
    decayed = dataclasses.replace(
        long,
        steps=steps(DECAY_TOKENS, 8192),
        restart_learning_rate=size.rate * 0.5,
        restart_end_learning_rate=size.rate * 0.5 * 0.04,
        masked_lm_prob=0.15,
        local_rope_theta=LONG_THETA,
    )
    ramp = c.ramp_batch(short, FIRST_ROWS, ramp_tokens, multiple=768)
    return c.to_config_dict(
        c.Config(
            model=dataclasses.replace(
                SHAPE,
                hidden_size=size.width,
                num_hidden_layers=size.layers,
                num_attention_heads=size.heads,
                intermediate_size=size.units,
            ),
            objective="mlm",
            phases=(*ramp, long, decayed),
            data=c.PretrainOptions(
                segments="doc_sentences", short_seq_prob=0.0, packed_examples=16
            ),
            eval=c.EvalConfig(masked_lm_prob=0.15),
            optim=c.OptimConfig(
                name="stable_adamw",
                learning_rate=size.rate,
                warmup_steps=0,
                warmup_tokens=round(size.warmup_tokens * share),
                decay="constant",
                beta2=0.98,
                weight_decay=size.weight_decay,
                clip_norm=0.0,
            ),
        )
    )
