"""ModernBERT: rotary positions, windows, gated feed-forward parts, rows of up to 8,192 tokens.

    python -m bert_jax.train --config=configs/modernbert.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/modernbert.py:size=large
    ... --config=configs/modernbert.py:size=large --config.init=BASE --config.init_tile=True
    ... --config=configs/modernbert.py:size=base,tokens=20_000_000_000

Large begins as a tiled Base in the paper: give the workdir of the Base, on the same store. The
last one is the same run with every phase and ramp scaled down to 20 billion tokens, from two
trillion: batch sizes, rates and shares of the phases stay.

masks=constant   30% of the tokens in all three phases (the paper)
masks=falling    30, 15 and 5%, and of several stores (--config.data.store=EN,DE,...) shares by
                 their tokens to the power of 0.7, 0.5 and 0.3 (mmBERT; which languages enter when
                 is up to config.phases[i].store_weights; its sizes are in docs/guide/models.md)

Slice: 64 chips (the paper's machine: 8 H100).
Corpus: 2 trillion tokens of English web text, code and papers, in 50,368 byte-level pieces:
data_pipeline.build --train_vocab=byte_bpe --vocab_size=50368 --lowercase=false.
Expect (paper, quoted from memory): GLUE 88.4 Base, 90.4 Large. Not measured with this code.

Source of sizes, batches, tokens and rates: Warner et al. 2024, and AnswerDotAI/ModernBERT, configs
of its branch pretraining_documentation. Its code masks special tokens too and draws random words
below the largest id of the batch; here neither is so. Rows hold up to 16 examples, not any number.
Weight decay is in proportion to the first phase's peak in all phases. Large has 640 long rows per
step, there 616. Not here: Large goes back to 900 billion tokens when its loss stalls; its rate of
long rows is from its second attempt.
"""

import dataclasses

from bert_jax import config as c

BASE = c.ModelConfig(
    hidden_size=768,
    num_hidden_layers=22,
    num_attention_heads=12,
    intermediate_size=1152,
    hidden_act="gelu_erf",
    max_position_embeddings=8192,
    layer_norm_eps=1e-5,
    local_attention=128,
    global_attn_every_n_layers=3,
    **c.MODERNBERT,
)
LARGE = dataclasses.replace(
    BASE,
    hidden_size=1024,
    num_hidden_layers=28,
    num_attention_heads=16,
    intermediate_size=2624,
)
BILLION = 10**9
PAPER_TOKENS = 1719 * BILLION + 250 * BILLION + 50 * BILLION
LONG_THETA = 160_000.0


@dataclasses.dataclass(frozen=True)
class Size:
    """Set what differs between the sizes; tokens are counts of the paper's run."""

    model: c.ModelConfig
    rate: float  # peak, rows of 1,024
    long_rate: float  # peak, rows of 8,192
    batches: tuple[int, int]  # rows of 1,024: at the start, and after the ramp
    ramp_tokens: int
    warmup_tokens: int


SIZES = {
    "base": Size(BASE, 8e-4, 3e-4, (768, 4608), 50 * BILLION, 3 * BILLION),
    "large": Size(LARGE, 5e-4, 5e-5, (448, 4928), 10 * BILLION, 2 * BILLION),
}
# Masking rates: short rows, long rows, decay.
MASKS = {"constant": (0.3, 0.3, 0.3), "falling": (0.3, 0.15, 0.05)}
# Temperatures of the stores' shares, in the same order; 0 takes config.data.store_temperature.
TEMPERATURES = {"constant": (0.0, 0.0, 0.0), "falling": (0.7, 0.5, 0.3)}
END_OF_DECAY = 0.001  # final learning rate / initial


def get_config(text: str = "") -> c.ConfigDict:
    """Return ModernBERT; text follows the colon of --config=configs/modernbert.py:..."""
    chosen = c.arguments(
        text, size=("base", *SIZES), masks=("constant", *MASKS), tokens=PAPER_TOKENS
    )
    of_short, of_long, of_decay = MASKS[chosen["masks"]]
    temperatures = TEMPERATURES[chosen["masks"]]
    size, share = SIZES[chosen["size"]], chosen["tokens"] / PAPER_TOKENS
    first, most = size.batches
    rows_of_long = -(-most // 512) * 64  # the same tokens per step, in a multiple of 64 chips

    def steps(tokens: float, batch_size: int, seq_len: int) -> int:
        return max(1, round(tokens * share / (batch_size * seq_len)))

    ramp_tokens = round(size.ramp_tokens * share)
    short = c.Phase(
        1024,
        steps(1719 * BILLION, most, 1024) - ramp_tokens // (most * 1024),
        batch_size=most,
        masked_lm_prob=of_short,
        store_temperature=temperatures[0],
    )
    long = c.Phase(
        8192,
        steps(250 * BILLION, rows_of_long, 8192),
        batch_size=rows_of_long,
        restart_learning_rate=size.long_rate,
        masked_lm_prob=of_long,
        store_temperature=temperatures[1],
        global_rope_theta=LONG_THETA,
    )
    decayed = dataclasses.replace(
        long,
        steps=steps(50 * BILLION, rows_of_long, 8192),
        restart_decay="one_minus_sqrt",
        restart_end_learning_rate=size.long_rate * END_OF_DECAY,
        masked_lm_prob=of_decay,
        store_temperature=temperatures[2],
    )
    return c.to_config_dict(
        c.Config(
            model=size.model,
            objective="mlm",
            phases=(
                *c.ramp_batch(short, first, ramp_tokens, multiple=(most - first) // 5),
                long,
                decayed,
            ),
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
                weight_decay=1e-5,
                clip_norm=0.0,
            ),
        )
    )
