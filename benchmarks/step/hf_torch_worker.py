"""Run the training step of Hugging Face's classes in PyTorch for step_vs_hf_torch.py.

Runs in an environment with torch and transformers; started by the driver. Attention is torch's
scaled_dot_product_attention, the optimizer its fused AdamW without decay of biases and norms; in
bfloat16 the forward runs under autocast with float32 weights. Where a class projects every position
on the vocabulary, it does so here.
"""

import contextlib
import time
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.step import hf_families, workers

_running: dict[str, Any] = {}  # model, optimizer, losses, batch of the last `build`


def build(
    size: dict[str, Any],
    dropout_rate: float,
    batch_file: str,
    learning_rate: float,
    dtype: str,
    device: str,
    compiles: bool,
) -> dict[str, Any]:
    """Make model, optimizer and batch, compile the step and take it once."""
    torch.manual_seed(0)
    theirs = hf_families.build(size, dropout_rate)
    model = theirs.model.to(device).train()
    batch = hf_families.make_batch(dict(np.load(batch_file)))
    forward = torch.compile(theirs.losses, dynamic=False) if compiles else theirs.losses
    _running.update(
        model=model,
        device=torch.device(device),
        dtype=getattr(torch, dtype),
        optimizer=torch.optim.AdamW(
            hf_families.group_by_decay(model, 0.01),
            lr=learning_rate,
            betas=(0.9, 0.999),
            eps=1e-6,
            fused=True,
        ),
        losses=forward,
        uncompiled=theirs.losses,
        batch={name: _place(array, device) for name, array in batch.items()},
    )
    start = time.perf_counter()
    run(1)
    kind = torch.cuda.get_device_name(device) if device == "cuda" else "cpu"
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "first_step_secs": time.perf_counter() - start,
        "device": kind,
        "versions": {module.__name__: module.__version__ for module in (transformers, torch)},
    }


def _place(array: np.ndarray, device: str) -> torch.Tensor:
    is_id = np.issubdtype(array.dtype, np.integer)
    return torch.from_numpy(array.astype(np.int64) if is_id else array).to(device)


def _precision() -> contextlib.AbstractContextManager[Any]:
    if _running["dtype"] == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(_running["device"].type, dtype=_running["dtype"])


def _wait() -> None:
    if _running["device"].type == "cuda":
        torch.cuda.synchronize()


def run(steps: int) -> dict[str, float]:
    """Take steps; return wall and processor time (all threads) until the last one is done."""
    model, optimizer = _running["model"], _running["optimizer"]
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(steps):
        with _precision():
            losses = _running["losses"](model, _running["batch"])
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    _wait()
    secs, cpu_secs = time.perf_counter() - start, time.process_time() - cpu_start
    return {"secs": secs, "cpu_secs": cpu_secs} | {
        name: float(of.detach()) for name, of in losses.items()
    }


def save_params(file: str) -> dict[str, Any]:
    """Write the current parameters; tied ones once."""
    np.savez(file, **{n: p.detach().cpu().numpy() for n, p in _running["model"].named_parameters()})
    return {}


def export(folder: str) -> dict[str, float]:
    """Write the current model; return its losses without dropout."""
    model = _running["model"]
    model.save_pretrained(folder)
    with torch.no_grad():
        losses = _running["uncompiled"](model, _running["batch"])
    return {name: float(loss) for name, loss in losses.items()}


def gradients(params_file: str, out_file: str) -> dict[str, float]:
    """Write gradients at these parameters, in float32; return the losses."""
    model, given = _running["model"], np.load(params_file)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(given[name]))
    losses = _running["uncompiled"](model, _running["batch"])
    sum(losses.values()).backward()
    np.savez(out_file, **{n: p.grad.cpu().numpy() for n, p in model.named_parameters()})
    model.zero_grad(set_to_none=True)
    return {name: float(loss.detach()) for name, loss in losses.items()}


if __name__ == "__main__":
    workers.serve({f.__name__: f for f in (build, run, save_params, export, gradients)})
