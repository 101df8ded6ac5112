"""The check of a kernel on the devices at hand, with kernels that are interpreted and spoiled."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.config import MeshConfig
from bert_jax.model import attention
from bert_jax.model.attention import cudnn, tpu_kernel, verify
from bert_jax.model.attention.verify import AttentionShape
from bert_jax.parallel import mesh

SHAPES = [
    (attention.KERNEL, AttentionShape(128, 2, 64, 0, False, 0.1, 0.0)),
    (attention.FLASH, AttentionShape(256, 2, 64, 128, False, 0.0, 10_000.0)),
    (attention.CUDNN, AttentionShape(128, 2, 32, 48, True, 0.0, 160_000.0)),
]


def two_devices():
    return mesh.make_mesh(MeshConfig(), jax.devices()[:2])


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "shape"), SHAPES)
def test_a_right_kernel_loses_what_bfloat16_loses(kernel, shape):
    check = verify.check_kernel(kernel, shape, two_devices())
    assert check.is_sound, check.describe()
    assert check.wrong_mask_bits == 0
    assert 0.1 < max(check.errors.values()) < verify.MAX_ERROR_RATIO


@pytest.mark.slow
def test_a_kernel_that_is_wrong_on_one_device_is_found(monkeypatch):
    (kernel, shape), attend = SHAPES[2], cudnn.attend

    def spoiled(qkv_BSE, *arguments):
        out_BSD = attend(qkv_BSE, *arguments)
        is_second = jax.lax.axis_index(mesh.BATCH_AXES) == 1
        return out_BSD.at[0, -1].multiply(jnp.where(is_second, 1.25, 1.0).astype(out_BSD.dtype))

    monkeypatch.setattr(cudnn, "attend", spoiled)
    check = verify.check_kernel(kernel, shape, two_devices())
    assert not check.is_sound
    assert check.errors["output"] > verify.MAX_ERROR_RATIO
    assert kernel in check.describe()


@pytest.mark.long
def test_masks_of_other_words_are_found(monkeypatch):
    kernel, shape = SHAPES[0]
    attend = tpu_kernel.attend

    def swapped(qkv_BSE, bias_E, ids_BS, words, row):
        return attend(qkv_BSE, bias_E, ids_BS, words[::-1], row)

    monkeypatch.setattr(tpu_kernel, "attend", swapped)
    check = verify.check_kernel(kernel, shape, two_devices())
    assert check.wrong_mask_bits > 100
    assert not check.is_sound


@pytest.mark.parametrize(
    ("errors", "bits", "is_sound"),
    [
        ({"output": 0.9, "gradient of qkv": 2.0}, 0, True),
        ({"output": 0.9, "gradient of qkv": 2.01}, 0, False),
        ({"output": 0.9}, 1, False),
    ],
)
def test_each_result_and_each_bit_counts(errors, bits, is_sound):
    assert verify.KernelCheck("k", SHAPES[0][1], errors, bits).is_sound == is_sound


def test_an_error_that_is_no_number_is_not_sound():
    check = verify.KernelCheck("k", SHAPES[0][1], {"output": float("inf")}, 0)
    assert not check.is_sound
    got, expected = jnp.asarray([jnp.nan, 1.0]), jnp.ones(2)
    assert verify._distance(got, expected) == float("inf")
