"""Settings of the pre-training that parity.py compares, but for its store, weights and seeds.

Google's optimizer and schedule, at a length that is quick on two cores. The sizes come from the
weights that both sides begin with.
"""

import ml_collections

from bert_jax import config as c


def get_config(text: str = "") -> ml_collections.ConfigDict:
    """Take steps, dropout and log_every (steps) after the colon."""
    given = c.arguments(text, steps=200, dropout=0.0, log_every=1)
    steps, dropout_rate = given["steps"], given["dropout"]
    return c.to_config_dict(
        c.Config(
            model=c.ModelConfig(
                hidden_dropout_prob=dropout_rate, attention_probs_dropout_prob=dropout_rate
            ),
            phases=(c.Phase(128, steps, batch_size=16),),
            optim=c.OptimConfig(learning_rate=5e-4, warmup_steps=max(1, steps // 10)),
            eval=c.EvalConfig(every_steps=steps, examples=512),
            checkpoint=c.CheckpointConfig(every_steps=steps),
            log_every_steps=given["log_every"],
        )
    )
