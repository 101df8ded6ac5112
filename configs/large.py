"""BERT-Large on 64 TPU chips.

    python -m bert_jax.train --config=configs/large.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/large.py:recipe=lamb64k

Slice: 64 chips (the paper's 16 Cloud TPUs were v2-128; today v5litepod-64 or v4-128).
Corpus: Wikipedia and books, 3.3 billion words, 30,522 uncased word pieces.
Expect (paper): 4 days on its machine, held-out perplexity 3.23, GLUE 82.1, SQuAD 1.1 F1 90.9.
Not measured with this code.

recipe=paper    batch 256 throughout: 900k steps at 128, 100k at 512 (appendix A.2)
recipe=tokens   131k tokens in every step: batch 1024 at 128, 256 at 512
recipe=lamb64k  LAMB at batch 65,536 and 32,768 in 8,601 steps (You et al. 2020; rates and warm-up
                of NVIDIA DeepLearningExamples, PyTorch BERT: loss 1.24-1.27 at the end). Both
                phases fit 64 v5e chips by the compiler's count (docs/results/tpu.md). The second
                restarts the schedule; moments and their bias correction go on
"""

from bert_jax import config as c

MODEL = c.ModelConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)


def paper(batch_size_at_128: int) -> c.Config:
    """Return the paper's two phases."""
    return c.Config(
        model=MODEL,
        phases=(
            c.Phase(128, 900_000, batch_size=batch_size_at_128),
            c.Phase(512, 100_000, batch_size=256),
        ),
    )


def lamb64k() -> c.Config:
    """Return NVIDIA's two phases: the second restarts the schedule and keeps the moments."""
    return c.Config(
        model=MODEL,
        phases=(
            c.Phase(128, 7038, batch_size=65_536, micro_batches=16),
            c.Phase(
                512,
                1563,
                batch_size=32_768,
                max_predictions_per_seq=80,
                micro_batches=64,
                restart_learning_rate=4e-3,
                restart_warmup_steps=200,  # 12.8% of 1,563
            ),
        ),
        optim=c.OptimConfig(
            name="lamb",
            learning_rate=6e-3,
            warmup_steps=2001,  # 28.43% of 7,038
            decay_power=0.5,
        ),
        checkpoint=c.CheckpointConfig(every_steps=200),
        eval=c.EvalConfig(every_steps=500),
        log_every_steps=10,
    )


def get_config(text: str = "") -> c.ConfigDict:
    """Return BERT-Large; text follows the colon of --config=configs/large.py:..."""
    recipes = {"paper": paper(256), "tokens": paper(1024), "lamb64k": lamb64k()}
    recipe = c.arguments(text, recipe=("paper", *recipes))["recipe"]
    return c.to_config_dict(recipes[recipe])
