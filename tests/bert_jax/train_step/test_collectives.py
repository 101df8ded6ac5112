"""What devices exchange in a step: once, whatever the micro-batches, and in the dtype asked for."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator

import jax
import pytest
from jax.extend import core

from bert_jax.config import MeshConfig
from bert_jax.model import bert
from bert_jax.parallel import mesh
from bert_jax.train_step import optimizers, schedule, state, step
from bert_jax.train_step.objectives import MLM_NSP
from tests.bert_jax.tiny_models import abstract_batch
from tests.bert_jax.train_step.gradients import PLAIN

REDUCED, SCATTERED, GATHERED = "psum", "all_to_all", "all_gather"
SCALARS = 6  # loss, hits and weight of words, and of next sentences


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A collective over batch axes, as the step asks for it; size is that of the whole array."""

    kind: str
    dtype: str
    size: int
    in_a_loop: bool


def exchanges(jaxpr, lengths: dict[str, int], in_a_loop: bool = False) -> Iterator[Exchange]:
    """Of a traced program and all programs in it; axes of one device exchange nothing."""
    for equation in jaxpr.eqns:
        kind = equation.primitive.name
        if kind in (REDUCED, SCATTERED, GATHERED):
            named = equation.params["axes" if kind == REDUCED else "axis_name"]
            axes = (named,) if isinstance(named, str) else named
            if math.prod(lengths[axis] for axis in axes) > 1:
                for one in equation.outvars if kind == GATHERED else equation.invars:
                    size = math.prod(one.aval.shape)
                    yield Exchange(kind, str(one.aval.dtype), size, in_a_loop)
        for inner in core.jaxprs_in_params(equation.params):
            yield from exchanges(inner, lengths, in_a_loop or kind in ("scan", "while"))


def of_a_step(config: MeshConfig, micro_batches: int = 1):
    """The tree of abstract parameters of a step on eight devices, and what these exchange."""
    phase = dataclasses.replace(PLAIN.phases[0], micro_batches=micro_batches)
    config = dataclasses.replace(PLAIN, phases=(phase,), mesh=config)
    of = mesh.make_mesh(config.mesh, jax.devices())
    with jax.set_mesh(of):
        model = bert.build(config.model, "cpu", of.shape["model"])
        tx = optimizers.make_optimizer(config.optim)
        where = state.make_shardings(model, tx, of, config.mesh)
        take_step = step.make_train_step(model, MLM_NSP, tx, config, phase, where)
        first = state.make_abstract_state(model, tx, where)
        pace = schedule.make_pace_of(config)(0)
        traced = take_step.trace(first, abstract_batch(config, phase, of), pace)
    found = list(exchanges(traced.jaxpr.jaxpr, dict(of.shape)))
    return first.params, found


def cut_over_batch(leaf) -> bool:
    shape = leaf.sharding.mesh.shape
    return any(axis in mesh.BATCH_AXES and shape[axis] > 1 for axis in leaf.sharding.spec if axis)


def sizes(found, kind):
    return Counter(one.size for one in found if one.kind == kind)


def sent_as_one(params) -> Counter:
    """Sizes of the sharded arrays; the kernels of queries, keys and values of a layer are one."""
    arrays: Counter = Counter()
    for path, leaf in jax.tree.leaves_with_path(params):
        if cut_over_batch(leaf):
            name = jax.tree_util.keystr(path)
            arrays[re.sub("query|key|value", "", name)] += leaf.size
    return Counter(arrays.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "micro_batches"),
    [("dp", 2), ("zero1", 2), ("fsdp", 1), ("fsdp+tp", 2), ("zero1+tp", 2), ("tp", 1)],
)
def test_each_parameter_is_exchanged_once_a_step(preset, micro_batches):
    """A model axis changes nothing of how often."""
    tree, found = of_a_step(MeshConfig(preset=preset), micro_batches)
    params = jax.tree.leaves(tree)
    cut = Counter(leaf.size for leaf in params if cut_over_batch(leaf))
    reduced = Counter(leaf.size for leaf in params if not cut_over_batch(leaf))
    reduced += Counter({1: SCALARS})
    assert bool(cut) == (preset not in ("dp", "tp"))
    gradients, weights = sent_as_one(tree), cut
    assert Counter(one.kind for one in found) == Counter(
        {SCATTERED: gradients.total(), GATHERED: weights.total(), REDUCED: reduced.total()}
    )
    if "tp" not in preset:
        assert sizes(found, SCATTERED) == gradients
        assert sizes(found, GATHERED) == weights
        assert sizes(found, REDUCED) == reduced
    assert {one.dtype for one in found if one.kind != GATHERED} == {"float32"}
    assert not any(one.in_a_loop for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["dp", "zero1"])
def test_gradients_of_matrices_are_exchanged_in_bfloat16_on_request(preset):
    tree, found = of_a_step(MeshConfig(preset=preset, gradient_dtype="bfloat16"))
    matrices = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim > 1]
    whole = Counter(leaf.size for leaf in matrices if not cut_over_batch(leaf))
    sent = [one for one in found if one.kind != GATHERED and one.dtype == "bfloat16"]
    assert sizes(sent, SCATTERED) == sent_as_one(tree)
    assert sizes(sent, REDUCED) == whole
