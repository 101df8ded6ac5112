"""The loss of each kind of task, against SciPy on the logits that the same objective gives."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from scipy.special import log_softmax

from bert_jax.finetuning.objectives import OBJECTIVES, TERM, make_objective
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.model.dropout import CLASSIFIER_INPUT, Dropout, number_rows
from bert_jax.parallel import collectives, mesh
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from bert_jax.train_step import step
from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.packing import choose_packing, pack_examples
from data_pipeline.labeled.rows import build_rows
from data_pipeline.vocab.template import make_bert_template
from tests.bert_jax.lab.baselines.test_bilstm import by_hand as by_hand_lstm
from tests.bert_jax.tiny_models import SMALL, VOCAB, setting
from tests.bert_jax.train_step.gradients import draw, on_mesh

BERT = make_bert_template({"cls": 2, "sep": 3})
CLASSES = {CLASSIFY: 3, REGRESS: 1, CHOOSE: 1, SPAN: 2, TAG: 5}
EXAMPLES = 7
INDEX = np.array([*range(EXAMPLES), -1])  # one row fills up


def rows_of(kind):
    """Examples of different lengths with labels of the kind."""
    rng = np.random.default_rng(3)
    choices = 3 if kind == CHOOSE else 1
    rows = [
        frame(rng.integers(5, VOCAB, rng.integers(1, 9)), rng.integers(5, VOCAB, 3), BERT, 19)
        for _ in range(EXAMPLES * choices)
    ]
    tokens = sum(len(row.token_ids) for row in rows)
    if kind == TAG:
        by_token = {
            "label_ids": rng.integers(0, 5, tokens).astype(np.int32),
            "label_weights": rng.integers(0, 2, tokens).astype(np.float32),
        }
        return dataclasses.replace(build_rows(rows), token_labels=by_token)
    labels = {"label_ids": rng.integers(0, 3, EXAMPLES).astype(np.int32)}
    if kind == REGRESS:
        labels = {"label_values": rng.normal(size=EXAMPLES).astype(np.float32)}
    if kind == SPAN:
        lengths = np.array([len(row.token_ids) for row in rows])
        labels = {
            "start_positions": (lengths // 2).astype(np.int32),
            "end_positions": (lengths - 1).astype(np.int32),
        }
    return dataclasses.replace(build_rows(rows, labels), rows_per_example=choices)


@functools.cache
def build(kind, devices=1, preset="dp", causal_weight=0.0, **changes):
    """The model of a kind on a mesh, its parameters and its evaluation."""
    config = dataclasses.replace(SMALL, model=dataclasses.replace(SMALL.model, **changes))
    heads = bert.Heads(mlm=causal_weight > 0, nsp=False, classes=CLASSES[kind])
    at = setting(config, devices, preset, heads=heads)
    evaluate = step.make_eval_step(at.model, make_objective(kind, causal_weight))
    return at, on_mesh(draw(at.model, 0.2), at), evaluate


def evaluated(kind, batch, devices=1, **changes):
    """Loss sum, right ones, weight and outputs of a batch."""
    at, params, evaluate = build(kind, devices, **changes)
    with jax.set_mesh(at.mesh):
        found = evaluate(params, mesh.place_batch(batch, at.mesh))
    term = found["terms"][TERM]
    right = None if term.correct_sum is None else float(term.correct_sum)
    return float(term.loss_sum), right, float(found["weights"][TERM]), np.array(found["outputs"])


def assert_same(got, expected):
    assert got[0] == pytest.approx(expected[0], rel=1e-5)
    assert got[1:3] == expected[1:3]


def pack(rows):
    packing = choose_packing(rows.lengths_N[None])
    assert packing.rows < EXAMPLES and packing.examples > 1
    return pack_examples(rows, np.arange(EXAMPLES), packing, pad_id=0)


def by_hand(kind, logits, batch):
    """Loss sum, right ones and weight, an example at a time."""
    loss, right, weight = 0.0, 0, 0.0
    for row in range(EXAMPLES):
        if kind == REGRESS:
            loss += (logits[row, 0] - batch["label_values"][row]) ** 2
        elif kind == TAG:
            for at in np.flatnonzero(batch["label_weights"][row]):
                label = batch["label_ids"][row, at]
                loss -= log_softmax(logits[row, at].astype(np.float64))[label]
                right += logits[row, at].argmax() == label
                weight += 1
        elif kind == SPAN:
            tokens = int(batch["input_mask"][row].sum())
            wanted = batch["start_positions"][row], batch["end_positions"][row]
            ends = logits[row, :tokens].T.astype(np.float64)
            loss -= np.mean([log_softmax(of)[at] for of, at in zip(ends, wanted, strict=True)])
            right += all(of.argmax() == at for of, at in zip(ends, wanted, strict=True))
        else:
            label = batch["label_ids"][row]
            loss -= log_softmax(logits[row].astype(np.float64))[label]
            right += logits[row].argmax() == label
    return loss, None if kind == REGRESS else right, weight or EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CLASSIFY, REGRESS, CHOOSE, SPAN, TAG])
def test_sums_are_those_of_the_logits_and_rows_that_fill_up_count_for_nothing(kind):
    batch = rows_of(kind).batch(INDEX, 19, pad_id=0)
    loss, right, weight, logits = evaluated(kind, batch)
    expected = by_hand(kind, logits, batch)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    assert (right, weight) == expected[1:]
    width = {CHOOSE: (3,), SPAN: (19, 2), TAG: (19, 5)}.get(kind, (CLASSES[kind],))
    assert logits.shape == (8, *width)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CHOOSE, SPAN])
def test_longer_rows_and_more_devices_change_no_sum(kind):
    rows = rows_of(kind)
    one = evaluated(kind, rows.batch(INDEX, 19, pad_id=0))
    other = evaluated(kind, rows.batch(INDEX, 24, pad_id=0), devices=8)
    assert_same(other, one)
    np.testing.assert_allclose(other[3][:7, : one[3].shape[1]], one[3][:7], atol=1e-4)


MEANS = ((CLASSIFY, "gelu_erf"), (REGRESS, "mlm_transform"), (TAG, "mlm_transform"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (CLASSIFY, {}),
        (TAG, {}),
        *((kind, {"pooler_type": name, "classifier_pooling": "mean"}) for kind, name in MEANS),
    ],
)
def test_examples_beside_each_other_learn_as_examples_alone(kind, changes):
    """A mean is of an example's own tokens."""
    rows = rows_of(kind)
    alone = evaluated(kind, rows.batch(INDEX, 19, pad_id=0), **changes)
    assert_same(evaluated(kind, pack(rows), **changes), alone)


@pytest.mark.slow
def test_a_causal_model_classifies_by_its_last_token():
    """[CLS] sees nothing: read there, all examples would have the same logits."""
    rows = rows_of(CLASSIFY)
    alone = evaluated(CLASSIFY, rows.batch(INDEX, 19, pad_id=0), is_causal=True)
    assert np.ptp(alone[3][:EXAMPLES], axis=0).min() > 0.1
    same = evaluated(CLASSIFY, rows.batch(INDEX, 24, pad_id=0), is_causal=True)
    np.testing.assert_allclose(same[3][:EXAMPLES], alone[3][:EXAMPLES], atol=1e-4)
    assert_same(evaluated(CLASSIFY, pack(rows), is_causal=True), alone)


def encode(at, params, batch):
    """The encoder's vectors of the rows of a batch, and the model bound to its parameters."""
    bound = at.model.bind(params)
    visible = hide_padding(batch["input_mask"])
    return bound, bound.encode(EncoderRows(batch["input_ids"], batch["segment_ids"], visible))


def flatten(batch):
    """The rows of a batch, of which a question has several."""
    names = ("input_ids", "segment_ids", "input_mask")
    return {name: np.reshape(batch[name], (-1, batch[name].shape[-1])) for name in names}


@pytest.mark.long
@pytest.mark.parametrize("kind", [CHOOSE, TAG])
def test_a_causal_model_also_learns_the_texts_of_its_task(kind):
    """Radford et al. 2018, equation 5, an example at a time; packed rows have the same sums."""
    at, params, evaluate = build(kind, causal_weight=0.5, is_causal=True)
    jax.set_mesh(at.mesh)
    rows = rows_of(kind)
    batches = [rows.batch(INDEX, 19, pad_id=0)] + ([pack(rows)] if kind == TAG else [])

    @jax.jit
    def compute_logits(params, batch):
        bound, hidden_RSD = encode(at, params, batch)
        return bound.compute_target_logits(hidden_RSD)

    flat = flatten(batches[0])
    logits_RSV = np.array(compute_logits(params, mesh.place_batch(flat, at.mesh)), np.float64)
    loss, weight = 0.0, 0
    for row, length in enumerate(flat["input_mask"].sum(axis=1)):
        for at_token in range(1, length):
            label = flat["input_ids"][row, at_token]
            loss -= log_softmax(logits_RSV[row, at_token - 1])[label]
            weight += 1
    for batch in batches:
        found = evaluate(params, mesh.place_batch(batch, at.mesh))
        term = found["terms"]["causal"]
        assert float(term.loss_sum) == pytest.approx(loss, rel=1e-5)
        assert (term.scale, float(found["weights"]["causal"])) == (0.5, weight)


def read_rows(lstms, x_SD):
    """What the layers of LSTMs make of one example's vectors, by their equations."""
    for layer in ("00", "01"):
        sides = []
        for name, order in (("forward", 1), ("backward", -1)):
            arrays = {leaf: np.array(array) for leaf, array in lstms[layer][name].items()}
            units = len(arrays["recurrent"])
            arrays["bias"][units : 2 * units] += 1  # of the forget gate
            sides.append(by_hand_lstm(arrays, x_SD[::order])[::order])
        x_SD = np.concatenate(sides, axis=1)
    return x_SD


@pytest.mark.long
@pytest.mark.parametrize(("kind", "pooling"), [(CLASSIFY, "cls"), (REGRESS, "mean"), (TAG, "cls")])
def test_lstms_read_each_example_for_itself(kind, pooling):
    changes = {"is_causal": True, "bilstm_units": 11, "hidden_size": 28}
    changes["classifier_pooling"] = pooling
    rows = rows_of(kind)
    batch = rows.batch(INDEX, 24, pad_id=0)
    alone = evaluated(kind, batch, **changes)
    assert_same(evaluated(kind, pack(rows), **changes), alone)
    # The encoder's vectors, read by the equations.
    at, params, _ = build(kind, **changes)
    assert "pooler" not in params
    jax.set_mesh(at.mesh)
    run = jax.jit(lambda params, batch: encode(at, params, batch)[1])
    hidden_BSD = np.asarray(run(params, mesh.place_batch(flatten(batch), at.mesh)))
    layer = jax.tree.map(np.asarray, params["classifier"])
    for row, length in enumerate(rows.lengths_N):
        read_SU = read_rows(params["bilstm"], hidden_BSD[row, :length])
        if kind == CLASSIFY:  # the end of each direction
            read_SU = np.concatenate([read_SU[-1, :11], read_SU[0, 11:]])
        if kind == REGRESS:
            read_SU = read_SU.mean(axis=0)
        expected = read_SU @ layer["kernel"] + layer["bias"]
        logits = alone[3][row, :length] if kind == TAG else alone[3][row]
        np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.long
def test_gradients_of_lstms_are_the_same_on_eight_devices():
    batch = rows_of(SPAN).batch(INDEX, 19, pad_id=0)
    grads = []
    for devices, preset in ((1, "dp"), (8, "fsdp+tp")):
        at, params, _ = build(SPAN, devices, preset, bilstm_units=8)

        def loss(params, batch, model=at.model):
            return OBJECTIVES[SPAN].terms(model.bind(params), batch, None)[TERM].loss_sum

        with jax.set_mesh(at.mesh):
            placed = mesh.place_batch(batch, at.mesh)
            grads.append(jax.jit(jax.grad(loss))(params, placed)["bilstm"])
    for wanted, got in zip(*map(jax.tree.leaves, grads), strict=True):
        assert np.abs(wanted).max() > 1e-4
        np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", [CLASSIFY, CHOOSE, TAG, SPAN])
def test_a_layer_reads_what_is_dropped_out_as_the_encoder_is(kind):
    """By the same masks; the choices of a question are rows of their own, numbered in order.

    Before the layer of spans nothing is dropped out.
    """
    at, params, _ = build(kind, hidden_dropout_prob=0.5)
    jax.set_mesh(at.mesh)
    rows = rows_of(kind)
    batch = rows.batch(np.arange(EXAMPLES), 19, pad_id=0)
    count = EXAMPLES * rows.rows_per_example

    def make_dropout(rows):
        return Dropout(jnp.uint32(3), jnp.uint32(5), number_rows(rows))

    @jax.jit
    def compute(params, flat, batch):
        bound, dropout = at.model.bind(params), make_dropout(count)
        visible = hide_padding(flat["input_mask"])
        given = EncoderRows(flat["input_ids"], flat["segment_ids"], visible, dropout)
        read = bound.encode(given)
        if kind != SPAN:
            pooled = read if kind == TAG else bound.pool(read)
            layers = at.model.config.num_hidden_layers
            read = dropout.apply(pooled, 0.5, layers, CLASSIFIER_INPUT, 1)
        return read, collectives.map_over_batch(
            lambda params, *given: (
                OBJECTIVES[kind].terms(at.model.bind(params), *given)[TERM].loss_sum
            ),
            (params, batch, make_dropout(EXAMPLES)),
            PartitionSpec(),
        )

    placed = (mesh.place_batch(each, at.mesh) for each in (flatten(batch), batch))
    read, loss = compute(params, *placed)
    layer = jax.tree.map(np.asarray, params["classifier"])
    logits = np.asarray(read) @ layer["kernel"] + layer["bias"]
    if kind == CHOOSE:
        logits = logits.reshape(EXAMPLES, rows.rows_per_example)
    expected, *_ = by_hand(kind, logits, batch)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
