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

import dataclasses

import ml_collections

from bert_jax.config import (
    Config,
    EvalConfig,
    OptimConfig,
    Phase,
    arguments,
    to_config_dict,
)


def get_config(text: str = "") -> ml_collections.ConfigDict:
    """The paper's two lengths in a fiftieth of its steps, at a fifth of its rate; no arguments."""
    arguments(text)
    return to_config_dict(
        dataclasses.replace(
            Config(),
            init="hf:google-bert/bert-base-uncased",
            phases=(
                Phase(128, 18_000, batch_size=128, max_predictions_per_seq=20),
                Phase(512, 2_000, batch_size=32, max_predictions_per_seq=77),
            ),
            optim=OptimConfig(learning_rate=2e-5, warmup_steps=1_000),
            eval=EvalConfig(every_steps=2_000),
        )
    )
