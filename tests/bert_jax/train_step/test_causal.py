"""Left to right: against NumPy, blind to what follows, on packed rows and on any devices."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.model.attention import Visible, hide_other_examples
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh
from bert_jax.train_step import metrics, step
from bert_jax.train_step.objectives import CAUSAL, find_pooled
from tests.bert_jax.packed_rows import packed
from tests.bert_jax.tiny_models import CONFIG, MODEL, VOCAB, random_batch, setting
from tests.bert_jax.train_step.gradients import assert_same, compute, draw, on_mesh

SHALLOW = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, num_hidden_layers=1))
MASK = 3


def masked_batch(seed=0):
    """Rows with [MASK] at their slots, and the rows before that."""
    batch = random_batch(seed)
    original = batch["input_ids"].copy()
    for row in range(len(original)):
        # Twice the same position would be masked once.
        positions, first = np.unique(batch["masked_lm_positions"][row], return_index=True)
        used = np.zeros_like(batch["masked_lm_weights"][row])
        used[first] = batch["masked_lm_weights"][row][first]
        batch["masked_lm_weights"][row] = used
        positions = batch["masked_lm_positions"][row][used > 0]
        batch["masked_lm_ids"][row] = 0
        batch["masked_lm_ids"][row][used > 0] = original[row, positions]
        batch["input_ids"][row, positions] = MASK
    assert (batch["input_ids"] != original).sum() > 20
    return batch, original


@pytest.fixture(scope="module")
def params():
    return draw(setting(SHALLOW, 1).model)


def evaluate(params, batch, config=SHALLOW):
    at = setting(config, 1)
    placed = mesh.place_batch(batch, at.mesh)
    return metrics.flatten(step.make_eval_step(at.model, CAUSAL)(on_mesh(params, at), placed))


def test_the_loss_is_that_of_numpy(params):
    """Cross entropy of each token that follows another one, by logits under a mask made here."""
    batch, original = masked_batch()
    at = setting(SHALLOW, 1)
    rows, length = original.shape
    earlier = np.tril(np.ones((length, length), bool)) & (batch["input_mask"] > 0)[:, None, :]
    placed = mesh.place_batch(
        {
            "ids": original,
            "segments": batch["segment_ids"],
            "mask": earlier[:, None],
            "places": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        },
        at.mesh,
    )

    @jax.jit
    def compute_logits(params):
        bert = at.model.bind(params)
        hidden = bert.encode(
            EncoderRows(placed["ids"], placed["segments"], Visible(placed["mask"]))
        )
        return bert.compute_mlm_logits(hidden, placed["places"])

    logits = np.asarray(compute_logits(on_mesh(params, at)), np.float64)[..., :VOCAB]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses, hits = [], []
    for row in range(rows):
        for place in range(batch["input_mask"][row].sum() - 1):
            target = original[row, place + 1]
            losses.append(-log_probs[row, place, target])
            hits.append(log_probs[row, place].argmax() == target)
    got = evaluate(params, batch)
    assert got["causal/weight"] == len(losses)
    assert got["causal/loss_sum"] == pytest.approx(sum(losses), rel=1e-5)
    assert got["causal/correct_sum"] == sum(hits)


CAUSAL_CONFIG = dataclasses.replace(
    CONFIG, model=dataclasses.replace(MODEL, is_causal=True, num_hidden_layers=2)
)


def hidden_vectors(config, ids, row):
    at = setting(config, 1)
    rows = mesh.place_batch({"ids": ids} | row, at.mesh)

    @jax.jit
    def run(params):
        visible = hide_other_examples(rows["example_ids"])
        return at.model.bind(params).encode(EncoderRows(rows["ids"], rows["segment_ids"], visible))

    return np.asarray(run(at.model.init(jax.random.key(5))))


def test_a_prefix_does_not_depend_on_what_follows():
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCAB, (4, 19)).astype(np.int32)
    whole = {"segment_ids": np.zeros_like(ids), "example_ids": np.ones_like(ids)}
    later, own = ids.copy(), ids.copy()
    later[:, 8:] = 5
    own[:, 7] = ids[:, 7] % (VOCAB - 1) + 1
    of_ids, of_later, of_own = (
        hidden_vectors(CAUSAL_CONFIG, rows, whole) for rows in (ids, later, own)
    )
    np.testing.assert_array_equal(of_ids[:, :8], of_later[:, :8])
    np.testing.assert_array_equal(of_ids[:, :7], of_own[:, :7])
    assert np.abs(of_ids[:, 7:] - of_own[:, 7:]).max(axis=(0, 2)).min() > 1e-3


@pytest.mark.slow
def test_a_prefix_in_a_window_sees_no_more_of_what_follows():
    model = dataclasses.replace(
        CAUSAL_CONFIG.model, global_attn_every_n_layers=2, local_attention=6
    )
    ids = np.random.default_rng(0).integers(5, VOCAB, (4, 19)).astype(np.int32)
    whole = {"segment_ids": np.zeros_like(ids), "example_ids": np.ones_like(ids)}
    later = ids.copy()
    later[:, 8:] = 5
    config = dataclasses.replace(CAUSAL_CONFIG, model=model)
    np.testing.assert_array_equal(
        hidden_vectors(config, ids, whole)[:, :8], hidden_vectors(config, later, whole)[:, :8]
    )


def test_the_objective_hides_what_follows_in_a_model_of_either_kind(params):
    """As in a run whose causal phases come before masked ones."""
    batch, _ = masked_batch()
    causal = dataclasses.replace(SHALLOW, model=dataclasses.replace(SHALLOW.model, is_causal=True))
    assert evaluate(params, batch) == evaluate(params, batch, causal)


def test_masks_change_nothing(params):
    """All tokens are predicted, of rows as they were."""
    batch, original = masked_batch()
    plain = dict(batch, input_ids=original)
    plain["masked_lm_weights"] = np.zeros_like(batch["masked_lm_weights"])
    assert evaluate(params, batch) == evaluate(params, plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "micro_batches", "preset"), [(1, 1, "dp"), (8, 2, "dp"), (8, 1, "fsdp+tp")]
)
def test_packed_rows_have_the_metrics_and_gradients_of_their_examples(
    params, devices, micro_batches, preset
):
    """No token sees another example or predicts its first one; on eight devices as on one."""
    batch, _ = masked_batch()
    ends = np.cumsum([1, 3, 2, 2] * 2)
    rows = packed(batch, np.split(np.arange(16), ends[:-1]) + [[]] * 8, 59, 17, 3)
    expected = compute(setting(SHALLOW, 1), CAUSAL, params, batch)
    at = setting(SHALLOW, devices, preset)
    assert_same(compute(at, CAUSAL, params, rows, micro_batches=micro_batches), expected)


def test_a_classifier_reads_the_last_token_of_a_causal_model():
    at = setting(CAUSAL_CONFIG, 1)
    bert = at.model.bind(at.model.init(jax.random.key(0)))
    batch = random_batch()
    np.testing.assert_array_equal(find_pooled(bert, batch), batch["input_mask"].sum(axis=1) - 1)
    rows = packed(batch, [[0, 1], [2], [3, 4, 5]], 59, 17, 3)
    last = np.asarray(find_pooled(bert, rows))
    for row, examples in enumerate([[0, 1], [2], [3, 4, 5]]):
        ends = np.cumsum([batch["input_mask"][example].sum() for example in examples]) - 1
        np.testing.assert_array_equal(last[row, : len(examples)], ends)
        assert (last[row, len(examples) :] == 0).all()
    other = setting(CONFIG, 1)
    plain = other.model.bind(other.model.init(jax.random.key(0)))
    assert find_pooled(plain, batch) is None
    np.testing.assert_array_equal(find_pooled(plain, rows), rows["cls_positions"])
