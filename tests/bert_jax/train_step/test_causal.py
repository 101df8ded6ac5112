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
from tests.bert_jax.tiny_models import CONFIG, MODEL, SMALL, VOCAB, random_batch, setting
from tests.bert_jax.train_step.gradients import (
    ROW,
    assert_same,
    compute,
    draw,
    masked_once,
    on_mesh,
    restored,
)

MASK = 3


def masked_batch():
    """Rows with [MASK] at their slots, and the rows before that."""
    batch = masked_once()
    original = batch["input_ids"].copy()
    _, masks = restored(batch)
    batch["masked_lm_ids"][np.nonzero(batch["masked_lm_weights"])] = original[masks]
    batch["input_ids"][masks] = MASK
    assert (batch["input_ids"] != original).sum() > 20
    return batch, original


@pytest.fixture(scope="module")
def params():
    return draw(setting(SMALL, 1).model)


@pytest.fixture(scope="module")
def evaluate(params):
    """A function of a batch: its sums with these parameters, by one program for all."""
    at = setting(SMALL, 1)
    take, placed = step.make_eval_step(at.model, CAUSAL), on_mesh(params, at)

    def run(batch):
        jax.set_mesh(at.mesh)
        return metrics.flatten(take(placed, mesh.place_batch(batch, at.mesh)))

    return run


@pytest.mark.slow
def test_the_loss_is_that_of_numpy(params, evaluate):
    """Cross entropy of each token that follows another one, by logits under a mask made here."""
    batch, original = masked_batch()
    at = setting(SMALL, 1)
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
    got = evaluate(batch)
    assert got["causal/weight"] == len(losses)
    assert got["causal/loss_sum"] == pytest.approx(sum(losses), rel=1e-5)
    assert got["causal/correct_sum"] == sum(hits)


CAUSAL_CONFIG = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, is_causal=True))


def encoder(config):
    """A function of ids: their hidden vectors, by one program for all."""
    at = setting(config, 1)

    @jax.jit
    def run(params, rows):
        visible = hide_other_examples(rows["example_ids"])
        return at.model.bind(params).encode(EncoderRows(rows["ids"], rows["segment_ids"], visible))

    params = on_mesh(draw(at.model), at)

    def encode(ids):
        rows = {"ids": ids, "segment_ids": np.zeros_like(ids), "example_ids": np.ones_like(ids)}
        return np.asarray(run(params, mesh.place_batch(rows, at.mesh)))

    return encode


@pytest.mark.slow
@pytest.mark.parametrize(
    "windows",
    [
        {},
        pytest.param(
            {"global_attn_every_n_layers": 2, "local_attention": 6}, marks=pytest.mark.long
        ),
    ],
)
def test_a_prefix_does_not_depend_on_what_follows(windows):
    ids = np.random.default_rng(0).integers(5, VOCAB, (4, 19)).astype(np.int32)
    later, own = ids.copy(), ids.copy()
    later[:, 8:] = 5
    own[:, 7] = ids[:, 7] % (VOCAB - 1) + 1
    model = dataclasses.replace(CAUSAL_CONFIG.model, **windows)
    encode = encoder(dataclasses.replace(CAUSAL_CONFIG, model=model))
    of_ids, of_later, of_own = map(encode, (ids, later, own))
    np.testing.assert_array_equal(of_ids[:, :8], of_later[:, :8])
    np.testing.assert_array_equal(of_ids[:, :7], of_own[:, :7])
    assert np.abs(of_ids[:, 7:] - of_own[:, 7:]).max(axis=(0, 2)).min() > 1e-3


@pytest.mark.slow
def test_the_objective_hides_what_follows_in_a_model_of_either_kind(params, evaluate):
    """As in a run whose causal phases come before masked ones."""
    batch, _ = masked_batch()
    model = dataclasses.replace(SMALL.model, is_causal=True)
    at = setting(dataclasses.replace(SMALL, model=model), 1)
    sums = step.make_eval_step(at.model, CAUSAL)(
        on_mesh(params, at), mesh.place_batch(batch, at.mesh)
    )
    assert metrics.flatten(sums) == evaluate(batch)


@pytest.mark.slow
def test_masks_change_nothing(evaluate):
    """All tokens are predicted, of rows as they were."""
    batch, original = masked_batch()
    plain = dict(batch, input_ids=original)
    plain["masked_lm_weights"] = np.zeros_like(batch["masked_lm_weights"])
    assert evaluate(batch) == evaluate(plain)


@pytest.mark.long
def test_packed_rows_have_the_metrics_and_gradients_of_their_examples(params):
    """No token sees another example or predicts its first one; on eight devices as on one."""
    batch, _ = masked_batch()
    ends = np.cumsum([1, 3, 2, 2] * 2)
    rows = packed(batch, np.split(np.arange(16), ends[:-1]) + [[]] * 8, *ROW)
    expected = compute(setting(SMALL, 1), CAUSAL, params, batch)
    at = setting(SMALL, 8, "fsdp+tp")
    assert_same(compute(at, CAUSAL, params, rows, micro_batches=2), expected)


@pytest.mark.slow
def test_a_classifier_reads_the_last_token_of_a_causal_model():
    at = setting(CAUSAL_CONFIG, 1)
    bert = at.model.bind(on_mesh(draw(at.model), at))
    batch = random_batch()
    np.testing.assert_array_equal(find_pooled(bert, batch), batch["input_mask"].sum(axis=1) - 1)
    rows = packed(batch, [[0, 1], [2], [3, 4, 5]], *ROW)
    last = np.asarray(find_pooled(bert, rows))
    for row, examples in enumerate([[0, 1], [2], [3, 4, 5]]):
        ends = np.cumsum([batch["input_mask"][example].sum() for example in examples]) - 1
        np.testing.assert_array_equal(last[row, : len(examples)], ends)
        assert (last[row, len(examples) :] == 0).all()
    other = setting(CONFIG, 1)
    plain = other.model.bind(on_mesh(draw(other.model), other))
    assert find_pooled(plain, batch) is None
    np.testing.assert_array_equal(find_pooled(plain, rows), rows["cls_positions"])
