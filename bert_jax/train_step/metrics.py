"""Compute metrics (means over an interval) from the sums that good steps return.

Metric names are public:
- loss, <term>_loss (nats), <term>_accuracy, grad_norm, learning_rate; BERT's terms are mlm and nsp;
- skipped_steps, the bad steps of the interval;
- sequences_per_sec (trainer/throughput.py), which counts examples, whether or not several share a
  row, and input_wait_share, the share of the interval in which the devices waited for a batch;
- goodput (runtime/goodput.py), the share of the wall time since the first start that went into
  steps whose result was kept.
"""

import math
from collections.abc import Mapping
from typing import Any

from bert_jax.train_step.objectives import SMALLEST_WEIGHT

# Fields that may differ between two runs of the same command; all others are bitwise equal.
TIMINGS = (
    *("sequences_per_sec", "input_wait_share", "goodput"),
    *("train_secs", "wall_secs", "attempts"),
)

Sums = Mapping[str, Any]


def flatten(sums: Sums) -> dict[str, float]:
    """Return a step's sums as numbers keyed "mlm/loss_sum", "mlm/weight", ..."""
    numbers = {}
    for name, term in sums["terms"].items():
        numbers[f"{name}/loss_sum"] = float(term.loss_sum)
        if term.correct_sum is not None:
            numbers[f"{name}/correct_sum"] = float(term.correct_sum)
        numbers[f"{name}/weight"] = float(sums["weights"][name])
    plain = {name: float(sums[name]) for name in sums.keys() - {"terms", "weights", "guard"}}
    if "guard" in sums:
        plain["skipped"] = float(sums["guard"].is_bad)
    return numbers | dict(sorted(plain.items()))


def add_step(total: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
    """Add a step to an interval, initially {}. Plain floats survive JSON exactly."""
    grown = {name: total.get(name, 0.0) + value for name, value in numbers.items()}
    if "learning_rate" in numbers:
        grown["learning_rate"] = numbers["learning_rate"]
    return grown | {"steps": total.get("steps", 0.0) + 1.0}


def add_skipped(total: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
    """Count a bad step in an interval, ignoring its sums, which may be NaN."""
    counted = {name: numbers[name] for name in ("skipped", "learning_rate")}
    return {**total, **counted, "skipped": total.get("skipped", 0.0) + counted["skipped"]}


def compute_means(total: Mapping[str, float]) -> dict[str, float]:
    """Compute an interval's means: terms per prediction, grad_norm per step, and the latest rate.

    An interval with only bad steps has no means.
    """
    terms = [name.removesuffix("/weight") for name in total if name.endswith("/weight")]
    means = {}
    for name in terms:
        weight = max(total[f"{name}/weight"], SMALLEST_WEIGHT)
        means[f"{name}_loss"] = total[f"{name}/loss_sum"] / weight
        if f"{name}/correct_sum" in total:
            means[f"{name}_accuracy"] = total[f"{name}/correct_sum"] / weight
    if terms:
        means = {"loss": sum(means[f"{name}_loss"] for name in terms)} | means
    if "grad_norm" in total:
        means["grad_norm"] = total["grad_norm"] / total["steps"]
    if "learning_rate" in total:
        means["learning_rate"] = total["learning_rate"]
    if "skipped" in total:
        means["skipped_steps"] = int(total["skipped"])
    return means


def compute_heldout_means(total: Mapping[str, float]) -> dict[str, float]:
    """Compute the means of an evaluation, and each term's perplexity: exp of its loss."""
    means = compute_means(total)
    perplexities = {
        name.replace("_loss", "_perplexity"): math.exp(min(loss, 700.0))
        for name, loss in means.items()
        if name.endswith("_loss")
    }
    return means | perplexities
