"""Compute metrics (means over an interval) from the sums that good steps return.

Metric names are public:
- loss, <term>_loss (nats), <term>_accuracy, grad_norm, learning_rate; BERT's terms are mlm and nsp;
- objective rtd adds rtd_replaced_share, the share of tokens that were replaced,
  rtd_replaced_accuracy, the accuracy on these tokens, and rtd_auc (see _count_ranks);
- distillation has soft_loss, from the teacher's predictions, and cosine_loss, from its vectors;
  relation_distillation has query_loss, key_loss and value_loss;
- skipped_steps, the bad steps of the interval;
- sequences_per_sec (trainer/readings.py), which counts examples, whether or not several share a
  row, and input_wait_share, the share of the interval in which the devices waited for a batch;
- goodput (runtime/goodput.py), the share of the wall time since the first start that went into
  steps whose result was kept.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.train_step.objectives import MIN_WEIGHT

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
        if term.logits_histogram is not None:
            counts = _count_ranks(np.asarray(term.logits_histogram, np.float64))
            numbers |= {f"{name}/{key}": value for key, value in counts.items()}
        numbers[f"{name}/weight"] = float(sums["weights"][name])
        if term.scale != 1.0:
            numbers[f"{name}/scale"] = term.scale
    plain = {name: float(sums[name]) for name in sums.keys() - {"terms", "weights", "guard"}}
    if "guard" in sums:
        plain["skipped"] = float(sums["guard"].is_bad)
    return numbers | dict(sorted(plain.items()))


def _count_ranks(histogram_KN: np.ndarray) -> dict[str, float]:
    """Count tokens and pairs for the accuracy on class 1 and the area under the ROC curve (AUC).

    Each class-0 token of a step forms a pair with each class-1 token; the AUC is the share of pairs
    in which the class-1 token has the higher logit. Equal logits count half. All logits in a bin
    count as equal, so the AUC is off by at most half the share of pairs that share a bin.
    """
    zeros_N, ones_N = histogram_KN
    below_N = np.cumsum(zeros_N) - zeros_N
    return {
        "ones": float(ones_N.sum()),
        "ones_right": float(ones_N[len(ones_N) // 2 :].sum()),
        "pairs": float(zeros_N.sum() * ones_N.sum()),
        "pairs_right": float((ones_N * (below_N + zeros_N / 2)).sum()),
    }


def add_step(total: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
    """Add a step to an interval, initially {}. Plain floats survive JSON exactly."""
    grown = {name: total.get(name, 0.0) + value for name, value in numbers.items()}
    constant = {name: value for name, value in numbers.items() if _is_constant(name)}
    return grown | constant | {"steps": total.get("steps", 0.0) + 1.0}


def mix(factors: Sequence[float], totals: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add totals of the same objective, each multiplied by its factor."""
    mixed: dict[str, float] = {}
    for factor, total in zip(factors, totals, strict=True):
        scaled = {key: value * factor for key, value in total.items() if not _is_constant(key)}
        mixed = add_step(mixed, {**total, **scaled})
    return mixed


def _is_constant(name: str) -> bool:
    return name == "learning_rate" or name.endswith("/scale")


def add_skipped(total: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
    """Count a bad step in an interval, ignoring its sums, which may be NaN."""
    counted = {name: numbers[name] for name in ("skipped", "learning_rate")}
    return {**total, **counted, "skipped": total.get("skipped", 0.0) + counted["skipped"]}


def _list_terms(total: Mapping[str, float]) -> list[str]:
    return [name.removesuffix("/weight") for name in total if name.endswith("/weight")]


def compute_means(total: Mapping[str, float]) -> dict[str, float]:
    """Compute an interval's means: terms per prediction, grad_norm per step, and the latest rate.

    An interval with only bad steps has no means.
    """
    terms = _list_terms(total)
    means = {}
    for name in terms:
        weight = max(total[f"{name}/weight"], MIN_WEIGHT)
        means[f"{name}_loss"] = total[f"{name}/loss_sum"] / weight
        if f"{name}/correct_sum" in total:
            means[f"{name}_accuracy"] = total[f"{name}/correct_sum"] / weight
        if f"{name}/pairs" in total:
            ones, pairs = total[f"{name}/ones"], total[f"{name}/pairs"]
            means[f"{name}_replaced_share"] = ones / weight
            means[f"{name}_replaced_accuracy"] = total[f"{name}/ones_right"] / max(ones, 1.0)
            means[f"{name}_auc"] = total[f"{name}/pairs_right"] / max(pairs, 1.0)
    if terms:
        scaled = [means[f"{name}_loss"] * total.get(f"{name}/scale", 1.0) for name in terms]
        means = {"loss": sum(scaled)} | means
    if "grad_norm" in total:
        means["grad_norm"] = total["grad_norm"] / total["steps"]
    if "learning_rate" in total:
        means["learning_rate"] = total["learning_rate"]
    if "skipped" in total:
        means["skipped_steps"] = int(total["skipped"])
    return means


def compute_heldout_means(total: Mapping[str, float]) -> dict[str, float]:
    """Compute the means of an evaluation, and the perplexity of each term that predicts classes.

    Perplexity is exp(loss); replaced-token detection and distances from a teacher have none.

    Replaced-token detection also has majority_rtd_accuracy, the accuracy of always predicting the
    more frequent label, original or replaced; the frequencies depend on the generator at this step.
    """
    means = compute_means(total)
    for term in _list_terms(total):
        if f"{term}/pairs" in total:
            share = means[f"{term}_replaced_share"]
            means[f"majority_{term}_accuracy"] = max(share, 1.0 - share)
        elif f"{term}/correct_sum" in total:
            means[f"{term}_perplexity"] = math.exp(min(means[f"{term}_loss"], 700.0))
    return means
