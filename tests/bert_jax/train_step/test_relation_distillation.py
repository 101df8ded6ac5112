"""Relation distillation: NumPy's losses from the paper, whatever the shapes of the two models."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bert_jax.config import DistillConfig
from bert_jax.model.bert import Heads
from bert_jax.parallel import mesh
from bert_jax.train_step.objectives.distillation import make_relation_distillation
from tests.bert_jax.tiny_models import CONFIG, setting
from tests.bert_jax.train_step import test_distillation
from tests.bert_jax.train_step.gradients import (
    assert_same,
    draw,
    filled_up,
    masked_once,
    on_mesh,
    restored,
    rows_of,
    side_by_side,
)

pytestmark = pytest.mark.slow

ENCODER = Heads(mlm=False, nsp=False, pooler=False)
RELATION_HEADS = 8  # neither the student's 4 nor the teacher's
WEIGHTS = {"query_weight": 0.5, "key_weight": 1.0, "value_weight": 2.0}
OBJECTIVE = make_relation_distillation(
    DistillConfig(relation_heads=RELATION_HEADS, teacher_layer=2, **WEIGHTS)
)
ROBERTA = dataclasses.replace(CONFIG.model, num_hidden_layers=3, type_vocab_size=1)
MODERN = dataclasses.replace(
    ROBERTA,
    type_vocab_size=0,
    num_attention_heads=2,
    position_embedding_type="rotary",
    norm_position="pre",
    embedding_norm=True,
    linear_bias=False,
    norm_bias=False,
    hidden_act="gelu_erf",
    global_attn_every_n_layers=3,
    local_attention=8,
    pooler_type="mlm_transform",
)
STUDENT = dataclasses.replace(CONFIG.model, hidden_size=48)


def at(teacher=ROBERTA, devices=1, preset="dp", student=STUDENT):
    """A student of two layers and its teacher of three, of other widths."""
    of_teacher = dataclasses.replace(CONFIG, model=teacher)
    taught = setting(of_teacher, devices, preset, heads=ENCODER)
    return setting(dataclasses.replace(CONFIG, model=student), devices, preset), taught


def make_batch():
    """A batch of one segment, RoBERTa's only one, in which no token is masked twice."""
    batch = masked_once()
    return batch | {"segment_ids": np.zeros_like(batch["segment_ids"])}


run = functools.partial(test_distillation.run, objective=OBJECTIVE)


def draw_both(settings):
    return tuple(draw(each.model, 0.2, seed) for seed, each in enumerate(settings, 3))


def see(of, params, batch, number):
    """Queries, keys and values of a layer in float64, by NumPy from the layer's input."""

    @jax.jit
    def compute(params, batch):
        return of.model.bind(params).encode_layers(rows_of(batch))

    placed = mesh.place_batch(batch | {"input_ids": restored(batch)[0]}, of.mesh)
    x = np.float64(jax.device_get(compute(on_mesh(params, of), placed))[number])
    attention = params["layers"][f"{number:02d}"]["attention"]
    if of.model.config.norm_position == "pre":
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + of.model.config.layer_norm_eps)
        x = x * attention["layer_norm"]["scale"]
    maps = [attention[name] for name in ("query", "key", "value")]
    return [x @ np.float64(each["kernel"]) + each.get("bias", 0.0) for each in maps]


def relate(x, length):
    """The relations of one row by one loop a head: [heads, length, length]."""
    relations = []
    for part in np.split(x[:length], RELATION_HEADS, axis=-1):
        scores = part @ part.T / np.sqrt(part.shape[-1])
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        relations.append(powers / powers.sum(-1, keepdims=True))
    return np.stack(relations)


@pytest.mark.long
@pytest.mark.parametrize("teacher", [ROBERTA, MODERN], ids=["roberta", "modernbert"])
def test_losses_are_those_of_numpy(teacher):
    settings, batch = at(teacher), make_batch()
    params = draw_both(settings)
    means, grads = run(settings, params, batch, drops=False)
    ours, theirs = (see(*each, batch, 1) for each in zip(settings, params, strict=True))
    expected = {}
    for name, student, taught in zip(("query", "key", "value"), ours, theirs, strict=True):
        gaps = []
        for row, length in enumerate(batch["input_mask"].sum(1)):
            p, q = relate(taught[row], length), relate(student[row], length)
            gaps.extend((p * np.log(p / q)).sum(-1).mean(0))
        expected[name] = np.mean(gaps)
        assert means[f"{name}_loss"] == pytest.approx(expected[name], rel=1e-5)
        assert expected[name] > 0.01
    weighted = 0.5 * expected["query"] + expected["key"] + 2 * expected["value"]
    assert means["loss"] == pytest.approx(weighted, rel=1e-5)
    last = grads["layers"]["01"]
    unused = [grads["pooler"], grads["nsp"], grads["mlm"], last["mlp"], last["attention"]["output"]]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(unused))
    assert all(np.any(last["attention"][name]["kernel"]) for name in ("query", "key", "value"))


def test_a_student_that_is_its_teacher_has_nothing_to_learn():
    student, teacher = at(teacher=STUDENT)
    params = draw_both((student, teacher))
    same = {name: params[0][name] for name in params[1]}
    means, grads = run((student, teacher), (params[0], same), make_batch(), drops=False)
    assert abs(means["loss"]) < 1e-6
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(grads)) < 1e-5


@pytest.mark.long
def test_packed_rows_meshes_and_micro_batches_agree():
    batch = make_batch()
    params = draw_both(at())
    expected = run(at(), params, batch, drops=False)
    assert_same(run(at(), params, filled_up(batch, 20), drops=False), expected)
    packed = side_by_side(batch)
    parted = at(devices=8, preset="fsdp+tp")
    assert_same(run(parted, params, packed, drops=False, micro_batches=2), expected)
    several = at(devices=2, preset="zero1")
    assert_same(run(several, params, batch), run(at(), params, batch))
