"""Define objectives: functions from a batch and a bound model to weighted sums.

An objective returns sums. train_step/step.py adds sums and weights over micro-batches and devices
and divides once: the loss is the sum over terms of scale * loss_sum / weight. Read objective (the
interface), then mlm_nsp, causal, permutation, rtd and distillation (of predictions, of relations).
"""

from bert_jax.config import Config
from bert_jax.train_step.objectives.causal import CAUSAL
from bert_jax.train_step.objectives.distillation import DISTILLATION, RELATION_DISTILLATION
from bert_jax.train_step.objectives.mlm_nsp import MLM, MLM_NSP
from bert_jax.train_step.objectives.objective import (
    MIN_WEIGHT,
    Ahead,
    Batch,
    Objective,
    Term,
    encode_batch,
    find_pooled,
    sum_term,
)
from bert_jax.train_step.objectives.permutation import PERMUTATION
from bert_jax.train_step.objectives.rtd import RTD
from data_pipeline.io import Refused

OBJECTIVES: dict[str, Objective] = {
    "mlm_nsp": MLM_NSP,
    "mlm": MLM,
    "causal": CAUSAL,
    "permutation": PERMUTATION,
    "rtd": RTD,
    "distillation": DISTILLATION,
    "relation_distillation": RELATION_DISTILLATION,
}


def find(name: str, key: str = "config.objective") -> Objective:
    """Return the objective of this name; raise Refused, naming the key, if it is unknown."""
    if name not in OBJECTIVES:
        raise Refused(f"{key} is {name!r}; it must be one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


def find_each(config: Config) -> tuple[Objective, ...]:
    """Return the objective of each phase; raise Refused if a name is unknown."""
    default = find(config.objective)
    named = [
        find(phase.objective, f"config.phases[{index}].objective") if phase.objective else default
        for index, phase in enumerate(config.phases)
    ]
    return tuple(each.configure(config) if each.configure else each for each in named)
