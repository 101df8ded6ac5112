r"""Four endings to choose from: SWAG, or CODAH.

    python -m bert_jax.finetune --config=configs/finetune/swag.py --config.init=CHECKPOINT \
        --config.data.dir=DIR --workdir=WORKDIR
    ... --config=configs/finetune/swag.py:task=codah

DIR has train.csv, val.csv and test.csv of SWAG; or train.tsv, dev.tsv and test.tsv of a fold of
CODAH. Expect (paper, SWAG): 81.6 on dev with BERT-Base, 86.6 with Large.
Measured (row codah of docs/results/training.json), MiniLM on CODAH, fold 0: accuracy 50.4%.
"""

from bert_jax import config as c


def get_config(text: str = "") -> c.ConfigDict:
    """Return the settings of the paper's section 4.4; task=swag or task=codah."""
    task = c.arguments(text, task=("swag", "codah"))["task"]
    return c.to_config_dict(
        c.FinetuneConfig(
            data=c.TaskOptions(task=task),
            batch_size=16,
            optim=c.OptimConfig(learning_rate=2e-5, warmup_steps=0),
        )
    )
