"""Fine-tune a published task with transformers' Trainer: their side of finetune_vs_trainer.py.

Runs in an environment with torch, transformers and accelerate. It does what run_glue.py does: reads
the tables, tokenizes them, pads each batch to its longest row by DataCollatorWithPadding, trains
and predicts by Trainer, and saves the model. All else is the Trainer's default.
"""

import importlib.metadata
import os
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.step import workers


def versions() -> dict[str, Any]:
    """Return the versions of this side."""
    names = ("transformers", "torch", "accelerate")
    return {name: importlib.metadata.version(name) for name in names}


def read_rows(
    file: str, table: dict[str, Any], tokenizer: Any, max_length: int
) -> list[dict[str, Any]]:
    """Read a table and tokenize it.

    table: text_columns, label_column, header_lines, labels.
    """
    with open(file, encoding="utf-8") as lines:
        cells = [line.rstrip("\n").split("\t") for line in lines][table["header_lines"] :]
    texts = [[row[column] for row in cells] for column in table["text_columns"]]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length)
    labels = [table["labels"].index(row[table["label_column"]]) for row in cells]
    return [
        {name: ids[i] for name, ids in encoded.items()} | {"labels": label}
        for i, label in enumerate(labels)
    ]


def fine_tune(
    model_dir: str,
    folder: str,
    table: dict[str, Any],
    max_length: int,
    dropout_rate: float,
    batch_size: int,
    steps: int,
    seed: int,
    optim: dict[str, float],
) -> dict[str, Any]:
    """Train on train.tsv in `folder`, write the logits of dev.tsv there; return every loss.

    optim: learning_rate, warmup_steps, weight_decay, beta1, beta2, epsilon, clip_norm.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.logging.set_verbosity_error()  # hides a warning for each layer that the file lacks
    transformers.logging.disable_progress_bar()
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        model_dir,
        num_labels=len(table["labels"]),
        hidden_dropout_prob=dropout_rate,
        attention_probs_dropout_prob=dropout_rate,
    )
    train, dev = (
        read_rows(f"{folder}/{split}.tsv", table, tokenizer, max_length)
        for split in ("train", "dev")
    )
    settings = transformers.TrainingArguments(
        output_dir=f"{folder}/trainer",
        use_cpu=True,
        seed=seed,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        max_steps=steps,
        learning_rate=optim["learning_rate"],
        warmup_steps=int(optim["warmup_steps"]),
        weight_decay=optim["weight_decay"],
        adam_beta1=optim["beta1"],
        adam_beta2=optim["beta2"],
        adam_epsilon=optim["epsilon"],
        max_grad_norm=optim["clip_norm"],
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=model,
        args=settings,
        train_dataset=train,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trained = trainer.train()
    np.save(f"{folder}/logits.npy", trainer.predict(dev).predictions)
    trainer.save_model()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"losses": losses, "secs": trained.metrics["train_runtime"]}


if __name__ == "__main__":
    workers.serve({f.__name__: f for f in (versions, fine_tune)})
