"""Draw training states to save, without compiling anything."""

import jax
import numpy as np

from bert_jax.model.layers import Declared
from bert_jax.train_step import state
from bert_jax.train_step.state import TrainState
from tests.bert_jax.tiny_models import Setting


def draw_state(of: Setting, seed: int) -> TrainState:
    """Draw parameters, with zeros in padded rows; every other array of the state is zeros."""
    rng = np.random.default_rng(seed)
    abstract = state.make_abstract_state(of.model, of.tx, of.where)

    def draw(leaf: jax.ShapeDtypeStruct, declared: Declared) -> np.ndarray:
        numbers = np.zeros(leaf.shape, leaf.dtype)
        inner = tuple(slice(0, size) for size in declared.logical_dims)
        numbers[inner] = rng.normal(0.0, 0.02, declared.logical_dims)
        return numbers

    drawn = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    params = state.map_like_params(draw, abstract.params, of.model.declared)
    drawn = TrainState(drawn.step, params, drawn.opt_state, drawn.guard)
    return jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), drawn, abstract)
