"""One of GLUE's tasks: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, or ax.

    python -m bert_jax.finetune --config=configs/finetune/glue.py:task=rte
        --config.init=CHECKPOINT --config.data.dir=DIR --workdir=DIR

The paper takes the best on the development set of the rates 5e-5, 4e-5, 3e-5 and 2e-5, and for
BERT-Large of several restarts (section 4.1); python -m bert_jax.study grid does it. Its scores are
in its table 1.

Measured (row pruned of docs/results/training.json), MiniLM on SST-2, before pruning:
accuracy 78.4%.
"""

from bert_jax import config as c


def get_config(text: str = "") -> c.ConfigDict:
    """Return batches of 32, 3 epochs, 5e-5; task=NAME."""
    given = c.arguments(text, task="")
    return c.to_config_dict(c.FinetuneConfig(data=c.TaskOptions(task=given["task"])))
