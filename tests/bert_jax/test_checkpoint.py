"""A checkpoint whose parameters have the shapes of another version is refused by a sentence."""

import dataclasses

import jax
import pytest

from bert_jax import state
from bert_jax.checkpoint import Checkpoints
from bert_jax.checkpoint_reading import restore_params
from bert_jax.config import CheckpointConfig
from tests.bert_jax.tiny_models import CONFIG, setting

KERNEL = ("layers", "00", "attention", "query", "kernel")


def by_heads(path, leaf):
    """The kernel of the queries as earlier versions had it: [width, heads, head width]."""
    at = tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
    return leaf.reshape(32, 4, 8) if at == KERNEL else leaf


def reshaped_declared(path, of):
    """The same of what is known of it."""
    if tuple(key.key for key in path) != KERNEL:
        return of
    return dataclasses.replace(of, dims=(32, 4, 8), logical_dims=(32, 4, 8))


def test_parameters_of_other_shapes_are_refused(tmp_path):
    of = setting(CONFIG, 1)
    fresh = state.init(of.model, of.tx, of.where, seed=0)
    earlier = dataclasses.replace(
        of.model, declared=jax.tree_util.tree_map_with_path(reshaped_declared, of.model.declared)
    )
    params = jax.tree_util.tree_map_with_path(by_heads, fresh.params)
    saving = Checkpoints(tmp_path, CheckpointConfig(), earlier)
    saving.save(3, state.TrainState(fresh.step, params, (), ()), {})
    saving.close()

    words = r"3 holds params/layers/00/attention/query/kernel as float32\[32,4,8\], this bert_jax "
    with pytest.raises(ValueError, match=words):
        restore_params(tmp_path, 3, of.model, of.mesh)
    going_on = Checkpoints(tmp_path, CheckpointConfig(), of.model)
    with pytest.raises(ValueError, match=words):
        going_on.restore(state.abstract(of.model, of.tx, of.where))
    going_on.close()
