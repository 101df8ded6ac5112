"""Int8 products against NumPy's of whole numbers, and a model in int8 next to itself in float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.inference import batches
from bert_jax.interop.pretrained import quantize_layers
from bert_jax.model import ops
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh as mesh_lib
from tests.bert_jax.tiny_models import SMALL, random_batch, setting


def round_rows(x, axis):
    """Whole numbers of -127 to 127 and their scale, in NumPy."""
    scale = np.abs(x).max(axis, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return np.rint(x / scale).astype(np.int64), scale


@pytest.mark.slow
def test_a_product_is_of_whole_numbers_with_a_scale_a_token_and_a_channel():
    rng = np.random.default_rng(1)
    x_BSD = rng.normal(size=(2, 5, 300)).astype(np.float32)
    x_BSD[:, 2] *= 1000  # one token alone is coarse
    x_BSD[1, 4] = 0
    kernel_DE = (rng.normal(size=(300, 7)) * 10.0 ** np.arange(7)).astype(np.float32)
    x_numbers, x_scale = round_rows(x_BSD, -1)
    numbers, scale = round_rows(kernel_DE, 0)
    setting(SMALL, 1)
    kernel = quantize_layers({"layers": {"kernel": jnp.asarray(kernel_DE)}})["layers"]["kernel"]
    assert (kernel.numbers_DE.dtype, kernel.numbers_DE.nbytes) == (jnp.int8, 300 * 7)
    np.testing.assert_array_equal(kernel.numbers_DE, numbers)
    np.testing.assert_allclose(kernel[...], numbers * scale, rtol=1e-6)
    found = jax.jit(ops.multiply, static_argnums=2)(jnp.asarray(x_BSD), kernel, None)
    np.testing.assert_allclose(found, x_numbers @ numbers * x_scale * scale, rtol=1e-6)
    exact = x_BSD @ kernel_DE
    error = np.linalg.norm(found - exact, axis=(0, 1)) / np.linalg.norm(exact, axis=(0, 1))
    assert error.min() > 1e-4 and error.max() < 0.05  # of columns of any size


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "products", "meshes"),
    [
        (
            {"gated_mlp": True, "position_embedding_type": "rotary", "norm_position": "pre"},
            7,
            (1, 4),
        ),
        ({"position_embedding_type": "disentangled", "position_buckets": 8}, 6, (1,)),
        ({"position_embedding_type": "relative", "type_vocab_size": 0}, 2, (1,)),
    ],
)
def test_every_map_of_a_layer_is_in_int8_on_any_devices(changes, products, meshes):
    config = dataclasses.replace(SMALL, model=dataclasses.replace(SMALL.model, **changes))
    batch = random_batch(batch_size=8)

    def encode(bert, rows):
        visible = hide_padding(rows["input_mask"])
        rows = EncoderRows(rows["input_ids"], rows["segment_ids"], visible)
        return {"vectors": bert.encode(rows)}

    def run(devices, in_int8):
        of = setting(config, devices)
        params = of.model.init(jax.random.key(3))
        # Larger weights than those of a new model, so that layers change what they read.
        params = jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim > 1 else leaf, params)
        fields = ("input_ids", "segment_ids", "input_mask")
        placed = mesh_lib.place_batch({name: batch[name] for name in fields}, of.mesh)
        step = batches.compile_step(of.model, encode)
        lowered = step.lower(quantize_layers(params) if in_int8 else params, placed)
        dots = [line for line in lowered.as_text().splitlines() if "dot_general" in line]
        assert sum("xi8>" in line for line in dots) == (products if in_int8 else 0)
        return np.asarray(step(quantize_layers(params) if in_int8 else params, placed)["vectors"])

    exact, (coarse, *others) = run(1, False), [run(devices, True) for devices in meshes]
    assert 1e-4 < np.abs(coarse - exact).max() < 0.1 * np.abs(exact).max()
    for other in others:
        np.testing.assert_allclose(other, coarse, atol=1e-5)
