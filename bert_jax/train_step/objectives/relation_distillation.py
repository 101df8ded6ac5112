"""Train a student to relate its tokens as a frozen teacher does (MiniLMv2).

The relations of a layer are softmaxes of query-query, key-key and value-value products. Both models
split them into the same number of heads; their widths may differ. Nothing is masked.

Memory: several float32[B,R,S,S] of a micro-batch; R = 48 heads over 32 rows of 512 take 1.6 GB
each. The backward pass recomputes each of the three divergences, so only one exists at a
time. config.phases[i].micro_batches makes B smaller.

Only queries, keys and values of the student's last layer are used: its output projection and its
feed-forward layer have no gradient, as in the paper. Weight decay, if there is any, shrinks them.

Dimensions: B rows, S queries, T keys, D width, R relation heads, K their width.
Source: Wang et al. 2021 (MiniLMv2), section 3.1, arXiv 2012.15828.
"""

import jax
import jax.numpy as jnp

from bert_jax.config import DistillConfig
from bert_jax.model import ops
from bert_jax.model.attention.blocks import HIDDEN_BIAS
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.parallel import mesh
from bert_jax.train_step.objectives.objective import (
    Batch,
    Objective,
    Term,
    find_visible,
    make_rows,
    restore_ids,
    weigh_tokens,
)

KINDS = ("query", "key", "value")
# Fields of a batch with the teacher's vectors.
TEACHERS = {kind: f"teacher_{kind}" for kind in KINDS}


def relate(x_BSD: jax.Array, heads: int, mask: jax.Array) -> jax.Array:
    """Compute log relations between tokens: float[B,S,D] -> float32[B,R,S,T].

    They are log softmaxes over the tokens T that mask, bool[B, 1, 1 or S, T], makes visible.
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

    Shapes: float[B,S,D] each. Rows may be packed; their tokens are those before masking.
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
