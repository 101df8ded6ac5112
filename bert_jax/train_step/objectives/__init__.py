"""Define objectives: functions from a batch and a bound model to weighted sums.

Objectives return sums: train_step/step.py adds sums and weights over micro-batches and devices, and
divides once. The loss is the sum over terms of loss_sum / weight. An objective is a file; read
objective (what each declares), then mlm_nsp.
"""

from bert_jax.train_step.objectives.mlm_nsp import MLM, MLM_NSP
from bert_jax.train_step.objectives.objective import (
    SMALLEST_WEIGHT,
    Batch,
    Objective,
    Term,
    encode_batch,
    sum_term,
)

OBJECTIVES: dict[str, Objective] = {"mlm_nsp": MLM_NSP, "mlm": MLM}


def find(name: str) -> Objective:
    """Return the objective of this name; raise ValueError if there is none."""
    if name not in OBJECTIVES:
        raise ValueError(f"config.objective is {name!r}; it must be one of {sorted(OBJECTIVES)}")
    return OBJECTIVES[name]


__all__ = [
    "MLM",
    "MLM_NSP",
    "OBJECTIVES",
    "SMALLEST_WEIGHT",
    "Batch",
    "Objective",
    "Term",
    "encode_batch",
    "find",
    "sum_term",
]
