"""ELECTRA on one of GLUE's tasks: higher rates than BERT's at the top, lower ones below.

    python -m bert_jax.finetune --config=configs/finetune/electra.py:task=rte,size=base
        --config.init=CHECKPOINT --config.data.dir=DIR --workdir=DIR

size=small, base or large. Not measured with this code.

Source: google-research/electra configure_finetuning.py and model/optimization.py _get_layer_lrs.
The paper's table 7 has 3e-4 for Small, and no weight decay.
"""

from bert_jax import config as c

RATES = {
    "small": (1e-4, 0.8),
    "base": (1e-4, 0.8),
    "large": (5e-5, 0.9),
}  # peak learning rate, factor per layer
LONG_TASKS = ("rte", "stsb")


def get_config(text: str = "") -> c.ConfigDict:
    """Return batches of 32, 3 epochs, 10 for RTE and STS-B; task=NAME and size=SIZE."""
    given = c.arguments(text, task="", size=("small", *RATES))
    task, size = given["task"], given["size"]
    rate, factor = RATES[size]
    optim = c.OptimConfig(
        learning_rate=rate, warmup_steps=0, layer_rate_decay=factor, layer_rate_top=2
    )
    epochs = 10.0 if task in LONG_TASKS else 3.0
    return c.to_config_dict(
        c.FinetuneConfig(data=c.TaskOptions(task=task), optim=optim, epochs=epochs)
    )
