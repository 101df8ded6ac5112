"""Train a student on the outputs of a frozen teacher (distillation).

`distillation` teaches predictions of masked tokens. `relation_distillation` teaches how tokens
relate: the relations of a layer are softmaxes of query-query, key-key and value-value products.
Both models split them into the same number of heads; their widths may differ. Nothing is masked.

Memory of relations: several float32[B,R,S,S] of a micro-batch; R = 48 heads over 32 rows of 512
take 1.6 GB each. The backward pass recomputes each of the three divergences, so only one exists at
a time. config.phases[i].micro_batches makes B smaller.

Relations use only queries, keys and values of the student's last layer: its output projection and
its feed-forward layer have no gradient, as in the paper. Weight decay, if there is any, shrinks
them.

Dimensions: B rows, S sequence or queries, T keys, P slots for masked tokens, V vocabulary (padded),
D width, R relation heads, K their width.
Source: Sanh et al. 2019 (DistilBERT), section 3; distiller.py of transformers' research projects,
which computes the divergence at all tokens, and with restrict_ce_to_mask as here. Wang et al. 2021
(MiniLMv2), section 3.1, arXiv 2012.15828.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.config import DistillConfig
from bert_jax.model import ops
from bert_jax.model.attention.blocks import HIDDEN_BIAS
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.model.heads import cross_entropy
from bert_jax.parallel import mesh
from bert_jax.train_step.objectives.mlm_nsp import sum_masked_tokens
from bert_jax.train_step.objectives.objective import (
    Batch,
    Objective,
    Term,
    encode_batch,
    find_visible,
    make_rows,
    restore_ids,
    sum_losses,
    weigh_tokens,
)

# Batch fields for the teacher's outputs: logits at masked positions, vectors at all positions.
TEACHER_LOGITS, TEACHER_VECTORS = "teacher_logits", "teacher_vectors"
KINDS = ("query", "key", "value")
# Fields of a batch with the teacher's vectors.
TEACHERS = {kind: f"teacher_{kind}" for kind in KINDS}


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
        outputs = {}
        if "soft" in used:
            positions_BP = batch["masked_lm_positions"]
            outputs[TEACHER_LOGITS] = teacher.compute_mlm_logits(vectors_BSD, positions_BP)
        if "cosine" in used:
            outputs[TEACHER_VECTORS] = vectors_BSD
        return outputs

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


def relate(x_BSD: jax.Array, heads: int, mask: jax.Array) -> jax.Array:
    """Compute log relations between tokens: float[B,S,D] -> float32[B,R,S,T].

    Each is a log softmax over the keys T that `mask`, bool[B, 1, 1 or S, T], makes visible.
    """
    batch, seq_len, width = x_BSD.shape
    apart = (batch, seq_len, heads, width // heads)
    x_BSRK = jnp.reshape(x_BSD, apart, out_sharding=mesh.spec("batch", None, "heads", None))
    scale = jnp.asarray((width // heads) ** -0.5, x_BSD.dtype)
    axes = ("batch", "heads", None, None)
    scores_BRST = ops.einsum("bsrk,btrk->brst", x_BSRK * scale, x_BSRK, axes, jnp.float32)
    return jax.nn.log_softmax(scores_BRST + jnp.where(mask, 0.0, HIDDEN_BIAS))


def compare_relations(
    x_BSD: jax.Array, teacher_BSD: jax.Array, heads: int, mask: jax.Array
) -> jax.Array:
    """Compute KL(teacher, student) of each token's relations, averaged over heads: float32[B,S].

    The two widths D may differ; both are multiples of `heads`.
    """
    log_student_BRST = relate(x_BSD, heads, mask)
    log_teacher_BRST = relate(teacher_BSD, heads, mask)
    gaps_BRST = jnp.exp(log_teacher_BRST) * (log_teacher_BRST - log_student_BRST)
    return jnp.mean(jnp.sum(gaps_BRST, axis=-1), axis=1)


def project_batch(
    bert: Bert, batch: Batch, dropout: Dropout | None, layer: int
) -> dict[str, jax.Array]:
    """Compute queries, keys and values of a layer, counted from 1; 0 is the last.

    Shapes: float[B,S,D] each. Rows may be packed. The original tokens are read, before masking.
    """
    number = (layer or bert.config.num_hidden_layers) - 1
    rows = make_rows({**batch, "input_ids": restore_ids(batch)}, dropout)
    return dict(zip(KINDS, bert.project_layer(number, rows), strict=True))


def make_relation_distillation(settings: DistillConfig) -> Objective:
    """Make the objective: a sum of the terms whose weight is not 0, each a mean over tokens.

    query, key, value     KL from the teacher's relations to the student's, in its last layer

    Padding does not count.
    """
    weights = settings.query_weight, settings.key_weight, settings.value_weight
    used = {kind: weight for kind, weight in zip(KINDS, weights, strict=True) if weight > 0}
    compare = jax.checkpoint(compare_relations, static_argnums=2)

    def count(batch: Batch) -> dict[str, jax.Array]:
        return dict.fromkeys(used, jnp.sum(weigh_tokens(batch)))

    def teach(teacher: Bert, batch: Batch) -> dict[str, jax.Array]:
        vectors = project_batch(teacher, batch, None, settings.teacher_layer)
        return {TEACHERS[kind]: vectors[kind] for kind in used}

    def terms(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
        vectors, mask = project_batch(bert, batch, dropout, 0), find_visible(batch).mask

        def add_up(kind: str) -> Term:
            taught_BSD = batch[TEACHERS[kind]]
            gaps_BS = compare(vectors[kind], taught_BSD, settings.relation_heads, mask)
            return Term(jnp.sum(gaps_BS * weigh_tokens(batch)), None, scale=used[kind])

        return {kind: add_up(kind) for kind in used}

    return Objective(
        count,
        terms,
        untrained=("pooler", "nsp", "mlm"),
        teach=teach,
        configure=lambda config: make_relation_distillation(config.distill),
    )


RELATION_DISTILLATION = make_relation_distillation(DistillConfig())
