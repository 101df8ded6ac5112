r"""Go on training a published BERT on text of your field, on one accelerator.

    python -m bert_jax.train --config=configs/continue.py --config.init=hf:DIR \
        --config.data.store=STORE --workdir=DIR

Sizes and vocabulary are the checkpoint's: build STORE with its list, --vocab=DIR/vocab.txt. Without
--config.init it is bert-base-uncased, downloaded from the Hugging Face hub (extra [hub]).
Corpus: 30 to 500 MB, about 4.5 bytes a token: 20,000 steps see 100 MB some 15 times.
Hours and dollars: 0.40 and $0.47 on one v5e chip, by the compiler's estimate, which leaves out
input, evaluation and saves: python -m bert_jax.plan --config=configs/continue.py --config.init= \
--topology=v5e:1x1 --config.model.vocab_size=30522, 2026-11-22, 44a4788. Not measured on a TPU or a
GPU.
Rate: 2e-5, for additional steps from an existing checkpoint, of which 10,000 or more are advised
(google-research/bert@eedf5716ce, README, "Pre-training with BERT"). Batch sizes are our choice.
"""

import ml_collections

from bert_jax import config as c


def get_config(text: str = "") -> ml_collections.ConfigDict:
    """Take the paper's two lengths, a fiftieth of its steps, a fifth of its rate; no arguments."""
    c.arguments(text)
    return c.to_config_dict(
        c.Config(
            init="hf:google-bert/bert-base-uncased",
            phases=(
                c.Phase(128, 18_000, batch_size=128),
                c.Phase(512, 2_000, batch_size=32),
            ),
            optim=c.OptimConfig(learning_rate=2e-5, warmup_steps=1_000),
            eval=c.EvalConfig(every_steps=2_000),
        )
    )
