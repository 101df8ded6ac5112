"""Sums that a step returned -> numbers to read, bad steps left out of their means.

Metric names are public: loss, <term>_loss (nats), <term>_accuracy, grad_norm, learning_rate, with
the terms of the objective: mlm and nsp for BERT; and from clock.py sequences_per_sec, which counts
examples, so that it compares whether or not several share a row, and input_wait_share, the part of
the interval in which the devices had nothing to do because a batch was not there; skipped_steps
counts the bad steps of the interval; and from wall_time.py goodput, the share of the wall time
since the first start that went into training steps whose result was kept.
"""

import math
from collections.abc import Mapping
from typing import Any

from bert_jax.objectives import SMALLEST_WEIGHT

# What differs between two runs of the same command, in a line or in summary.json; all else is the
# same bit for bit.
TIMINGS = (
    *("sequences_per_sec", "input_wait_share", "goodput"),
    *("train_secs", "wall_secs", "attempts"),
)

Sums = Mapping[str, Any]


def flat(sums: Sums) -> dict[str, float]:
    """A step's sums, brought to the host, as numbers keyed "mlm/loss_sum", "mlm/weight", ..."""
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


def add(total: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
    """Add a step to an interval, an empty one at first. Plain numbers survive JSON exactly."""
    grown = {name: total.get(name, 0.0) + value for name, value in numbers.items()}
    if "learning_rate" in numbers:
        grown["learning_rate"] = numbers["learning_rate"]
    return grown | {"steps": total.get("steps", 0.0) + 1.0}


def add_skipped(total: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
    """Count a bad step into an interval without its sums, of which some may be NaN."""
    counted = {name: numbers[name] for name in ("skipped", "learning_rate")}
    return {**total, **counted, "skipped": total.get("skipped", 0.0) + counted["skipped"]}


def read(total: Mapping[str, float]) -> dict[str, float]:
    """Means over an interval: terms over their predictions, grad_norm over steps, the last rate.

    An interval of bad steps alone has no means.
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


def read_heldout(total: Mapping[str, float]) -> dict[str, float]:
    """Means over an evaluation, with the perplexity of each term: exp of its loss."""
    means = read(total)
    perplexities = {
        name.replace("_loss", "_perplexity"): math.exp(min(loss, 700.0))
        for name, loss in means.items()
        if name.endswith("_loss")
    }
    return means | perplexities
