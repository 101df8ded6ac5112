"""XLNet against Hugging Face's class: one stream, two streams, the loss and every gradient."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interop.families import FAMILIES
from bert_jax.interop.pretrained import Heads, Pretrained, place_params
from bert_jax.interop.tensor_names import rename
from bert_jax.model import bert
from bert_jax.model.attention import Visible, hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh as mesh_lib
from tests.bert_jax.interop.golden_models import (
    assert_comes_back,
    make_mesh,
    read_arrays,
    read_golden,
)
from tests.golden import xlnet
from tests.golden.encoders import weights

TOLERANCE = 1e-5
FAMILY = FAMILIES["xlnet"]


@pytest.fixture(scope="module")
def golden():
    return read_golden(xlnet)


@pytest.fixture(scope="module")
def gradients():
    return read_golden(xlnet, "gradient/")


@pytest.fixture(scope="module")
def config(golden):
    return FAMILY.parse(pathlib.Path("config.json"), json.loads(str(golden["config"])))


@pytest.mark.long
def test_streams_loss_and_gradients_are_those_of_transformers(golden, gradients, config):
    dims = {name: array.shape for name, array in gradients.items()}
    params = read_arrays(FAMILY, config, dims, lambda name: weights(name, dims[name]))
    mesh = make_mesh()
    with jax.set_mesh(mesh):
        batch = {name: array.astype(np.int32) for name, array in xlnet.batch().items()}
        ranks, places = batch["ranks"], batch["positions"]
        batch["labels"] = np.take_along_axis(batch["input_ids"], places, axis=1)
        batch["target_ranks"] = np.take_along_axis(ranks, places, axis=1)
        drawn = mesh_lib.place_batch(batch, mesh)
        ids, segments = drawn["input_ids"], drawn["segment_ids"]
        padding = hide_padding(drawn["input_mask"])

        def seen(limit):
            is_known = drawn["ranks"][:, None, None, :] < limit[:, None, :, None]
            return padding.mask & is_known

        model = bert.build(config, "cpu", heads=Heads(mlm=True, nsp=False))

        def loss(params):
            bound = model.bind(params)
            content = Visible(seen(drawn["ranks"] + 1))
            rows = EncoderRows(ids, segments, content)
            targets = bound.encode_targets(rows, drawn["positions"], seen(drawn["target_ranks"]))
            losses = bound.compute_target_losses(targets, drawn["labels"])[0]
            return jnp.mean(losses), (
                targets,
                bound.encode_layers(EncoderRows(ids, segments, padding)),
            )

        checkpoint = Pretrained("golden", config, params, vocabulary=None)
        params, _ = place_params(checkpoint, model, mesh, seed=0)
        compute = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (value, (targets, layers)), gradient = compute(params)
    is_text = batch["input_mask"] == 1
    for ours, theirs in zip(layers, golden["hidden"], strict=True):
        np.testing.assert_allclose(np.asarray(ours)[is_text], theirs[is_text], atol=TOLERANCE)
    np.testing.assert_allclose(targets, golden["targets"], atol=TOLERANCE)
    assert float(value) == pytest.approx(float(golden["loss"]), abs=TOLERANCE)
    del gradient["pooler"]  # which no class of the language model has
    renamed = rename(
        jax.device_get(gradient), lambda path: FAMILY.names.name_tensor(path, FAMILY.prefix)
    )
    assert sorted(renamed) == sorted(gradients)
    for name, theirs in gradients.items():
        ours = renamed[name][: len(theirs)]  # without rows that pad the vocabulary
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, err_msg=name)


def test_a_config_and_its_arrays_come_back_as_they_went(gradients, config):
    assert_comes_back(FAMILY, config, gradients)
