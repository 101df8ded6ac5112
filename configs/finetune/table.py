"""Classes or numbers of a table of your own: tsv, csv, Parquet or JSON lines.

    python -m bert_jax.finetune --config=configs/finetune/table.py --config.init=CHECKPOINT
        --config.data.dir=DIR --config.data.train_file=train.csv --config.data.dev_file=dev.csv
        --config.data.text_column=review --config.data.label_column=stars --workdir=DIR

second_text_column makes pairs; is_regression=True predicts numbers. Settings as for GLUE. Not
measured with this code.
"""

from bert_jax import config as c


def get_config() -> c.ConfigDict:
    """Return batches of 32, 3 epochs, 5e-5."""
    return c.to_config_dict(c.FinetuneConfig(data=c.TaskOptions(task="table")))
