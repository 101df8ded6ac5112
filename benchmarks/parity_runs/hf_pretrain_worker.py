"""Pre-train Hugging Face's BertForPreTraining in PyTorch: their side of parity.py.

Runs in an environment with torch and transformers; started by the driver. Attention is torch's
scaled_dot_product_attention, the step goes through torch.compile. The optimizer is Google BERT's:
AdamW without bias correction, no decay of biases and norms, gradients clipped by their global norm,
linear warm-up, then a linear decay counted from step 0.

Source: optimization.py@eedf5716ce AdamWeightDecayOptimizer and create_optimizer.
"""

import os
import time
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.step import workers
from benchmarks.step.cases import NOT_PREDICTED

_running: dict[str, Any] = {}  # model
FIELDS = ("input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label")
Batch = dict[str, torch.Tensor]


def initialize(
    sizes: dict[str, Any], dropout_rate: float, seed: int, folder: str
) -> dict[str, Any]:
    """Make the model with fresh weights and write it; dropout has the same seed."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(seed)
    transformers.logging.disable_progress_bar()
    config = transformers.BertConfig(
        **sizes,
        hidden_act="gelu_pytorch_tanh",  # Google BERT's; "gelu" would be by erf
        hidden_dropout_prob=dropout_rate,
        attention_probs_dropout_prob=dropout_rate,
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(config)
    model.save_pretrained(folder)
    _running["model"] = model
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


class _Adam:
    """Hold the moments, and take steps of Google BERT's optimizer."""

    def __init__(self, model: torch.nn.Module, optim: dict[str, float]) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.optim, self.params = optim, [p for _, p in named]
        self.decays = [
            0.0 if name.endswith("bias") or "LayerNorm" in name else optim["weight_decay"]
            for name, _ in named
        ]
        self.means, self.squares = ([torch.zeros_like(p) for p in self.params] for _ in range(2))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the parameters, and clear their gradients."""
        grads = [p.grad for p in self.params]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        clip_norm, beta1, beta2 = (self.optim[name] for name in ("clip_norm", "beta1", "beta2"))
        torch._foreach_mul_(grads, clip_norm / torch.clamp(norm, min=clip_norm))
        torch._foreach_lerp_(self.means, grads, 1.0 - beta1)
        torch._foreach_mul_(self.squares, beta2)
        torch._foreach_addcmul_(self.squares, grads, grads, 1.0 - beta2)
        divisors = torch._foreach_sqrt(self.squares)
        torch._foreach_add_(divisors, self.optim["epsilon"])
        # Both use the parameters as they were: p - rate * (m / (sqrt(v) + epsilon) + decay * p).
        torch._foreach_mul_(self.params, [1.0 - rate * decay for decay in self.decays])
        torch._foreach_addcdiv_(self.params, self.means, divisors, -rate)
        for parameter in self.params:
            parameter.grad = None


def _rate(step: int, steps: int, optim: dict[str, float]) -> float:
    """Return the learning rate of a step, counted from 0."""
    warmup = optim["warmup_steps"]
    share = step / warmup if step < warmup else 1.0 - step / steps
    return optim["learning_rate"] * share


def _batches(file: str) -> list[Batch]:
    """Read the batches of a file, whose arrays are stacked over them."""
    with np.load(file) as arrays:
        stacked = {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in FIELDS}
    return [
        {name: array[i] for name, array in stacked.items()} for i in range(len(stacked["labels"]))
    ]


def train(batches_file: str, optim: dict[str, float]) -> dict[str, Any]:
    """Take a step per batch; return the losses, and the seconds without the first, which compiles.

    optim: learning_rate, warmup_steps, weight_decay, beta1, beta2, epsilon, clip_norm.
    """
    model, batches = _running["model"].train(), _batches(batches_file)
    compiled, optimizer = torch.compile(model, dynamic=False), _Adam(model, optim)
    losses, start = [], time.perf_counter()
    for step, batch in enumerate(batches):
        loss = compiled(**batch).loss
        loss.backward()
        optimizer.step(_rate(step, len(batches), optim))
        losses.append(loss.item())
        if step == 0:
            first_secs, start = time.perf_counter() - start, time.perf_counter()
    step_secs = (time.perf_counter() - start) / max(len(batches) - 1, 1)
    return {"losses": losses, "first_step_secs": first_secs, "step_secs": step_secs}


@torch.inference_mode()
def evaluate(batches_file: str) -> dict[str, float]:
    """Return the mean losses over all predictions of all batches, without dropout."""
    model = _running["model"].eval()
    loss_sums, counts = {"mlm": 0.0, "nsp": 0.0}, {"mlm": 0, "nsp": 0}
    for batch in _batches(batches_file):
        labels = {"mlm": batch.pop("labels"), "nsp": batch.pop("next_sentence_label")}
        out = model(**batch)
        logits = {"mlm": out.prediction_logits, "nsp": out.seq_relationship_logits}
        for name, expected in labels.items():
            loss_sums[name] += torch.nn.functional.cross_entropy(
                logits[name].flatten(0, -2),
                expected.flatten(),
                ignore_index=NOT_PREDICTED,
                reduction="sum",
            ).item()
            counts[name] += int((expected != NOT_PREDICTED).sum())
    return {name: loss_sums[name] / counts[name] for name in counts}


if __name__ == "__main__":
    workers.serve({f.__name__: f for f in (initialize, train, evaluate)})
