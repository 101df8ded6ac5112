"""Distillation: NumPy's losses, nothing to learn from oneself, the same on every mesh."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.config import DistillConfig
from bert_jax.model.bert import Heads
from bert_jax.parallel import mesh
from bert_jax.train_step.objectives import DISTILLATION
from bert_jax.train_step.objectives.distillation import make_distillation
from tests.bert_jax.tiny_models import CONFIG, VOCAB, random_batch, setting
from tests.bert_jax.train_step.gradients import (
    assert_same,
    compute,
    draw,
    filled_up,
    on_mesh,
    rows_of,
    side_by_side,
)

pytestmark = pytest.mark.slow

WORDS = Heads(nsp=False, pooler=False)
TEMPERATURE = 3.0
WEIGHTS = {"soft_weight": 5.0, "mlm_weight": 2.0, "cosine_weight": 0.5}
OBJECTIVE = make_distillation(DistillConfig(temperature=TEMPERATURE, **WEIGHTS))


def at(devices=1, preset="dp", model_size=2):
    """A student of one layer and the model of its teacher of two, on so many devices."""
    student = dataclasses.replace(CONFIG.model, num_hidden_layers=1)
    config = dataclasses.replace(CONFIG, model=student)
    teacher = setting(CONFIG, devices, preset, model_size, WORDS)
    return setting(config, devices, preset, model_size), teacher


@pytest.fixture(scope="module")
def params():
    return tuple(draw(each.model, 0.2, seed) for seed, each in enumerate(at(), 3))


def run(settings, params, batch, drops=True, micro_batches=1, objective=OBJECTIVE):
    (student, teacher), (ours, theirs) = settings, params
    return compute(student, objective, ours, batch, drops, micro_batches, (teacher, theirs))


@pytest.fixture(scope="module")
def plain(params):
    """The metrics and the gradients of the batch, without dropout; dropped has them with it."""
    return run(at(), params, random_batch(), drops=False)


@pytest.fixture(scope="module")
def dropped(params):
    return run(at(), params, random_batch())


def see(of, params, batch):
    """Last vectors and logits of the masked positions, in float64."""

    @jax.jit
    def compute(params, batch):
        bound = of.model.bind(params)
        hidden = bound.encode(rows_of(batch))
        return hidden, bound.compute_mlm_logits(hidden, batch["masked_lm_positions"])

    placed = mesh.place_batch(batch, of.mesh)
    hidden, logits = jax.device_get(compute(on_mesh(params, of), placed))
    return np.float64(hidden), np.float64(logits[..., :VOCAB])


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_losses_are_those_of_numpy(params, plain):
    (of, teacher), batch, (means, _) = at(), random_batch(), plain
    ours, logits = see(of, params[0], batch)
    theirs, targets = see(teacher, params[1], batch)
    used = batch["masked_lm_weights"] > 0
    log_p, log_q = log_softmax(targets / TEMPERATURE), log_softmax(logits / TEMPERATURE)
    soft = (np.exp(log_p) * (log_p - log_q)).sum(-1)[used].mean() * TEMPERATURE**2
    mlm = -np.take_along_axis(log_softmax(logits), batch["masked_lm_ids"][..., None], -1)
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    cosine = (1 - (ours * theirs).sum(-1) / norms)[batch["input_mask"] > 0].mean()
    assert means["soft_loss"] == pytest.approx(soft, rel=1e-5) and soft > 0.1
    assert means["mlm_loss"] == pytest.approx(mlm[..., 0][used].mean(), rel=1e-5)
    assert means["cosine_loss"] == pytest.approx(cosine, rel=1e-5) and cosine > 0.1
    assert means["loss"] == pytest.approx(5 * soft + 2 * means["mlm_loss"] + 0.5 * cosine, rel=1e-5)


def test_a_student_that_is_its_teacher_has_only_words_to_learn(params):
    _, teacher = at()
    no_words = make_distillation(DistillConfig(**WEIGHTS | {"mlm_weight": 0.0}))
    means, grads = run(
        (teacher, teacher), (params[1], params[1]), random_batch(), drops=False, objective=no_words
    )
    assert abs(means["soft_loss"]) < 1e-6 and abs(means["cosine_loss"]) < 1e-6
    assert "mlm_loss" not in means
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(grads)) < 1e-5


@pytest.mark.long
def test_meshes_and_micro_batches_agree(params, dropped):
    """Only the student has gradients, and its unused parts none."""
    assert dropped[1].keys() == params[0].keys()
    for name in ("pooler", "nsp"):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(dropped[1][name]))
    assert DISTILLATION.untrained == ("pooler", "nsp")
    got = run(at(8, "fsdp+tp"), params, random_batch(), micro_batches=2)
    assert_same(got, dropped)


@pytest.mark.long
def test_packed_rows_are_those_of_the_examples(params, plain):
    assert_same(run(at(), params, side_by_side(random_batch()), drops=False), plain)


def test_rows_that_fill_up_a_batch_change_no_mean(params, plain):
    assert_same(run(at(), params, filled_up(random_batch(), 20), drops=False), plain)
