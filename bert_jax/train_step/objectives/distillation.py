"""Train a student on the predictions of a frozen teacher (distillation).

Dimensions: B rows, S sequence, P slots for masked tokens, V vocabulary (padded), D width.
Source: Sanh et al. 2019 (DistilBERT), section 3; distiller.py of transformers' research projects,
which computes the divergence at all tokens, and with restrict_ce_to_mask as here.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.config import DistillConfig
from bert_jax.model import ops
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.model.losses import cross_entropy
from bert_jax.train_step.objectives.mlm_nsp import sum_masked_tokens
from bert_jax.train_step.objectives.objective import (
    Batch,
    Objective,
    Term,
    encode_batch,
    sum_losses,
    weigh_tokens,
)

# Batch fields for the teacher's outputs: logits at masked positions, vectors at all positions.
TEACHER_LOGITS, TEACHER_VECTORS = "teacher_logits", "teacher_vectors"


def compute_soft_loss(
    logits_BPV: jax.Array, teacher_logits_BPV: jax.Array, temperature: float
) -> jax.Array:
    """Compute temperature**2 * KL(teacher, student) of softmax(logits / temperature): float32[B,P].

    In nats. The factor keeps the size of the gradient independent of the temperature (Hinton et al.
    2015, section 2).
    """
    log_student_BPV = jax.nn.log_softmax(logits_BPV / temperature)
    log_teacher_BPV = jax.nn.log_softmax(teacher_logits_BPV / temperature)
    gap_BPV = jnp.exp(log_teacher_BPV) * (log_teacher_BPV - log_student_BPV)
    return temperature**2 * jnp.sum(gap_BPV, axis=-1)


def compute_cosine_distance(x_BSD: jax.Array, y_BSD: jax.Array) -> jax.Array:
    """Compute 1 - the cosine of the angle between vectors: float[B,S,D] twice -> float32[B,S]."""
    x_BSD, y_BSD = x_BSD.astype(jnp.float32), y_BSD.astype(jnp.float32)
    squares_BS = jnp.sum(x_BSD**2, axis=-1) * jnp.sum(y_BSD**2, axis=-1)
    # torch bounds each norm by 1e-8.
    return 1.0 - jnp.sum(x_BSD * y_BSD, axis=-1) * jax.lax.rsqrt(jnp.maximum(squares_BS, 1e-16))


def make_distillation(settings: DistillConfig) -> Objective:
    """Make the objective: a sum of the terms whose weight is not 0, each a mean.

    soft     KL from the teacher's softened predictions of the masked tokens, times T squared
    mlm      cross entropy of the masked tokens
    cosine   1 - cosine between the last hidden vectors of student and teacher, over all tokens
             but padding
    """
    weights = {
        "soft": settings.soft_weight,
        "mlm": settings.mlm_weight,
        "cosine": settings.cosine_weight,
    }
    used = {name: weight for name, weight in weights.items() if weight > 0}

    def count(batch: Batch) -> dict[str, jax.Array]:
        masked, tokens = jnp.sum(batch["masked_lm_weights"]), jnp.sum(weigh_tokens(batch))
        return {name: tokens if name == "cosine" else masked for name in used}

    def teach(teacher: Bert, batch: Batch) -> dict[str, jax.Array]:
        vectors_BSD = encode_batch(teacher, batch, None)
        lessons = {}
        if "soft" in used:
            positions_BP = batch["masked_lm_positions"]
            lessons[TEACHER_LOGITS] = teacher.compute_mlm_logits(vectors_BSD, positions_BP)
        if "cosine" in used:
            lessons[TEACHER_VECTORS] = vectors_BSD
        return lessons

    def terms(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
        hidden_BSD = encode_batch(bert, batch, dropout)
        masked_BP = batch["masked_lm_weights"]
        sums: dict[str, Term] = {}
        if "soft" in used:
            logits_BPV = bert.compute_mlm_logits(hidden_BSD, batch["masked_lm_positions"])
            gaps_BP = compute_soft_loss(logits_BPV, batch[TEACHER_LOGITS], settings.temperature)
            sums["soft"] = Term(jnp.sum(gaps_BP * masked_BP), None)
            if "mlm" in used:
                losses = cross_entropy(logits_BPV, batch["masked_lm_ids"])
                sums["mlm"] = sum_losses(losses, masked_BP)
        elif "mlm" in used:
            vectors_BPD = ops.gather_positions(hidden_BSD, batch["masked_lm_positions"])
            sums["mlm"] = sum_masked_tokens(bert, batch, vectors_BPD)
        if "cosine" in used:
            angles_BS = compute_cosine_distance(hidden_BSD, batch[TEACHER_VECTORS])
            sums["cosine"] = Term(jnp.sum(angles_BS * weigh_tokens(batch)), None)
        return {name: dataclasses.replace(term, scale=used[name]) for name, term in sums.items()}

    return Objective(
        count,
        terms,
        untrained=("pooler", "nsp"),
        teach=teach,
        reads_teacher_mlm="soft" in used,
        configure=lambda config: make_distillation(config.distill),
    )


DISTILLATION = make_distillation(DistillConfig())
