"""SQuAD 1.1, or 2.0 where questions may have no answer: an answer cut from a text.

    python -m bert_jax.finetune --config=configs/finetune/squad.py --config.init=CHECKPOINT \
        --config.data.dir=DIR --workdir=runs/squad
    python -m bert_jax.finetune --config=configs/finetune/squad.py:version=2.0 ...

DIR holds train-v1.1.json and dev-v1.1.json, or the same of v2.0. Of BERT-Base the paper reports
80.8 exact match and 88.5 F1 on dev 1.1, of BERT-Large 84.1 and 90.9, and 78.7 and 81.9 on dev 2.0.

Measured (row squad of docs/results/training.json), MiniLM on 3,338 questions: F1 67.0,
exact match 54.3.

Settings: paper sections 4.2 and 4.3, 3 passes with batches of 32 at 5e-5, and 2 with batches of 48
for 2.0; lengths of rows, windows and answers are run_squad.py@eedf5716ce's.
"""

from bert_jax import config as c


def get_config(text: str = "") -> c.ConfigDict:
    """Return SQuAD 1.1, or 2.0 with version=2.0."""
    version = c.arguments(text, version=("1.1", "2.0"))["version"]
    has_unanswerable = version == "2.0"
    data = c.TaskOptions(task="squad", has_unanswerable=has_unanswerable)
    return c.to_config_dict(
        c.FinetuneConfig(
            data=data,
            epochs=2.0 if has_unanswerable else 3.0,
            batch_size=48 if has_unanswerable else 32,
        )
    )
