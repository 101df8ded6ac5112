"""Train the model that a budget of time allows on your machine, on your text.

    python -m bert_jax.train --config=configs/auto.py --config.budget=30m \
        --config.data.store=STORE --workdir=DIR
    ... --config=configs/auto.py:shape=modernbert --config.budget=2h
    ... --config.budget=40usd@v5e:2x4

Width, depth, rows, batch, steps and rate are chosen by the store's size, the measured speed of a
step, and a law of losses; DIR/chosen_config.py is the choice. The last command must run on that
slice; its budget is the time that 40 dollars buy there at the on-demand price. 30% is masked in
training and 15% in evaluation; Muon trains width 128, AdamW others. docs/guide/budget.md has more.

Measured (row budget_english_30m of docs/results/training.json), 30m on 9,755,982 tokens of
Wikipedia and novels, two cores: 2.729 nats per held-out token; the best of 12 configs set by hand
has 2.938. docs/experiments.md has the runs behind the choice.
"""

import dataclasses

from bert_jax import config as c

# The smallest size of each shape; larger ones keep its proportions.
BERT = c.ModelConfig(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=64,
    initializer_range=0.09,  # roughly hidden_size ** -0.5
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
MODERNBERT = dataclasses.replace(
    BERT,
    hidden_act="gelu_erf",
    intermediate_size=336,  # gated: as many weights as 512 without a gate
    type_vocab_size=0,
    position_embedding_type="rotary",
    local_attention=16,
    global_attn_every_n_layers=2,
    norm_position="pre",
    norm_bias=False,
    linear_bias=False,
    gated_mlp=True,
    initializer="megatron",
)


def get_config(text: str = "") -> c.ConfigDict:
    """Return a run of half an hour, or of --config.budget; text follows the colon."""
    is_bert = c.arguments(text, shape=("bert", "modernbert"))["shape"] == "bert"
    pairs = c.PretrainOptions(masked_lm_prob=0.3)
    texts = dataclasses.replace(pairs, segments="doc_sentences", short_seq_prob=0.0)
    return c.to_config_dict(
        c.Config(
            budget="30m",
            model=BERT if is_bert else MODERNBERT,
            objective="mlm_nsp" if is_bert else "mlm",
            # Placeholders: the budget or the command line sets these.
            phases=(c.Phase(32, 1600, batch_size=48), c.Phase(64, 400, batch_size=24)),
            optim=c.OptimConfig(name="adamw", learning_rate=3e-3, warmup_steps=200, beta2=0.98),
            data=pairs if is_bert else texts,
            eval=c.EvalConfig(examples=1024, masked_lm_prob=0.15),
        )
    )
