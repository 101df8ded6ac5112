"""Fine-tune Hugging Face's BertForSequenceClassification in PyTorch: their side of parity.py.

Runs in an environment with torch and transformers; started by the driver. It gets rows of token ids
and the order they come in, pads each batch to its longest row as their DataCollatorWithPadding
does, and trains as their Trainer does on a CPU: SDPA attention, fused AdamW without decay of biases
and norms, gradients clipped by their global norm, linear warm-up and decay.
"""

import os
import time
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.step import workers
from benchmarks.step.hf_families import group_by_decay

_running: dict[str, Any] = {}  # model, tokenizer
Batch = dict[str, torch.Tensor]


def versions() -> dict[str, Any]:
    """Return the versions of torch and transformers."""
    return {module.__name__: module.__version__ for module in (transformers, torch)}


def build(
    model_dir: str, classes: int, classifier_file: str, dropout_rate: float, seed: int
) -> dict[str, Any]:
    """Read the encoder from disk and put the given layer on it; seed is for dropout.

    classifier_file has `kernel` float32[D,C] and `bias` float32[C].
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(seed)
    transformers.logging.set_verbosity_error()  # hides a warning for each layer that the file lacks
    model = transformers.BertForSequenceClassification.from_pretrained(
        model_dir,
        num_labels=classes,
        hidden_dropout_prob=dropout_rate,
        attention_probs_dropout_prob=dropout_rate,
        attn_implementation="sdpa",
    )
    given = np.load(classifier_file)
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(given["kernel"].T.copy()))
        model.classifier.bias.copy_(torch.from_numpy(given["bias"]))
    _running["model"] = model
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


class _Rows:
    """Hold the arrays of data_pipeline.labeled.rows.EncodedRows; pad rows by the batch."""

    def __init__(self, file: str) -> None:
        self.arrays = dict(np.load(file))
        self.offsets = self.arrays["offsets"]

    def batch(self, index: np.ndarray) -> Batch:
        starts, ends = self.offsets[index][:, None], self.offsets[index + 1][:, None]
        positions = starts + np.arange((ends - starts).max())
        inside = positions < ends
        ids = np.where(inside, self.arrays["token_ids"][np.where(inside, positions, 0)], 0)
        second = (positions - starts >= self.arrays["second_starts"][index][:, None]) & inside
        fields = {"input_ids": ids, "attention_mask": inside, "token_type_ids": second}
        return {name: torch.from_numpy(field.astype(np.int64)) for name, field in fields.items()}

    def labels(self, index: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self.arrays["labels"][index].astype(np.int64))


def train(rows_file: str, batch_size: int, steps: int, optim: dict[str, float]) -> dict[str, Any]:
    """Train on the examples in the order of the file; return the loss of each step.

    optim: learning_rate, warmup_steps, weight_decay, beta1, beta2, epsilon, clip_norm.
    """
    model, rows = _running["model"].train(), _Rows(rows_file)
    optimizer = torch.optim.AdamW(
        group_by_decay(model, optim["weight_decay"]),
        lr=optim["learning_rate"],
        betas=(optim["beta1"], optim["beta2"]),
        eps=optim["epsilon"],
        fused=True,
    )
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, int(optim["warmup_steps"]), steps
    )
    order, losses = rows.arrays["order"], []
    start = time.perf_counter()
    for step in range(steps):
        index = order[step * batch_size : (step + 1) * batch_size]
        loss = model(**rows.batch(index), labels=rows.labels(index)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim["clip_norm"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return {"losses": losses, "secs": time.perf_counter() - start}


@torch.inference_mode()
def logits(rows_file: str, batch_size: int, out_file: str) -> dict[str, Any]:
    """Write the logits of every row, float32[N,C]; the longest rows run first."""
    model, rows = _running["model"].eval(), _Rows(rows_file)
    order = np.argsort(-np.diff(rows.offsets), kind="stable")
    start, parts = time.perf_counter(), []
    for first in range(0, len(order), batch_size):
        parts.append(model(**rows.batch(order[first : first + batch_size])).logits.numpy())
    found = np.empty((len(order), parts[0].shape[1]), np.float32)
    found[order] = np.concatenate(parts)
    np.save(out_file, found)
    return {"secs": time.perf_counter() - start}


def open_encoder(model_dir: str) -> dict[str, Any]:
    """Read encoder and tokenizer for vectors."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    _running["model"] = transformers.BertModel.from_pretrained(
        model_dir, attn_implementation="sdpa"
    ).eval()
    _running["tokenizer"] = transformers.BertTokenizerFast.from_pretrained(model_dir)
    return {}


@torch.inference_mode()
def vectors(
    sentences_file: str, batch_size: int, max_length: int, out_file: str
) -> dict[str, float]:
    """Write float32[N,D], the mean over each sentence's tokens; sentences sorted by length.

    As sentence-transformers' encode does: tokenized in batches, the longest sentences first, each
    batch padded to its longest.
    """
    model, tokenizer = _running["model"], _running["tokenizer"]
    with open(sentences_file, encoding="utf-8") as file:
        sentences = file.read().splitlines()
    start, cpu_start = time.perf_counter(), time.process_time()
    order = np.argsort([-len(sentence) for sentence in sentences], kind="stable")
    parts = []
    for first in range(0, len(order), batch_size):
        batch = tokenizer(
            [sentences[place] for place in order[first : first + batch_size]],
            padding=True,
            truncation=True,
            max_length=max_length,
            return_tensors="pt",
        )
        hidden_BSD = model(**batch).last_hidden_state
        mask_BS1 = batch["attention_mask"][:, :, None].to(hidden_BSD.dtype)
        parts.append(((hidden_BSD * mask_BS1).sum(1) / mask_BS1.sum(1)).numpy())
    found = np.empty((len(order), parts[0].shape[1]), np.float32)
    found[order] = np.concatenate(parts)
    secs, cpu_secs = time.perf_counter() - start, time.process_time() - cpu_start
    np.save(out_file, found)
    return {"secs": secs, "cpu_secs": cpu_secs}


if __name__ == "__main__":
    workers.serve({f.__name__: f for f in (versions, build, train, logits, open_encoder, vectors)})
