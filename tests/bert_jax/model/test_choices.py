"""How the step computes: what "auto" comes to; choices that change time and memory alone."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.model import attention
from bert_jax.model.layers import resolve_choices
from bert_jax.train_step.objectives import MLM_NSP
from tests.bert_jax.tiny_models import CONFIG, MODEL, random_batch, setting
from tests.bert_jax.train_step.gradients import assert_same, compute, draw


def test_auto_is_exact_in_float32_and_cheap_in_bfloat16():
    exact = resolve_choices(ComputeConfig(), jnp.dtype("float32"))
    assert not exact.single_pass_variance and not exact.gelu_saves_derivative
    assert exact.mlm_logits_dtype == jnp.float32
    cheap = resolve_choices(ComputeConfig(), jnp.dtype("bfloat16"))
    assert cheap.single_pass_variance and cheap.gelu_saves_derivative
    assert cheap.mlm_logits_dtype == jnp.bfloat16
    stated = ComputeConfig(
        attention="plain",
        layer_norm_variance="two_pass",
        mlm_logits_dtype="float32",
        gelu_backward="recomputed",
    )
    assert resolve_choices(stated, jnp.dtype("bfloat16")) == resolve_choices(
        stated, jnp.dtype("float32")
    )


def losses_and_gradients(model, batch, how, devices=1, preset="dp"):
    at = setting(dataclasses.replace(CONFIG, model=model, compute=how), devices, preset)
    return compute(at, MLM_NSP, draw(at.model), batch, drops=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "devices", "preset"),
    [
        (ComputeConfig(remat="layer"), 1, "dp"),
        (ComputeConfig(remat="layer", rolled_layers=True), 4, "tp"),
    ],
)
def test_rolled_and_recomputed_layers_have_the_losses_and_gradients(how, devices, preset):
    """Dropout on: its masks go by the number of the layer."""
    plain = losses_and_gradients(MODEL, random_batch(), ComputeConfig())
    assert_same(losses_and_gradients(MODEL, random_batch(), how, devices, preset), plain)


CHOICE = ("auto", "TPU v5 lite", 128, ModelConfig(), jnp.dtype("bfloat16"), 1)
NO_DROPOUT = ModelConfig(attention_probs_dropout_prob=0.0)
WINDOWS = ModelConfig(
    position_embedding_type="rotary",
    global_attn_every_n_layers=3,
    local_attention=128,
    attention_probs_dropout_prob=0.0,
)
A100 = "NVIDIA A100-SXM4-40GB"
CAUSAL = ModelConfig(is_causal=True, attention_probs_dropout_prob=0.0)


def test_the_kernel_is_taken_where_it_fits():
    words = "the TPU kernel"
    assert attention.choose(*CHOICE) == attention.Choice(attention.KERNEL, attention.KERNEL, words)
    assert attention.choose("plain", *CHOICE[1:]).complete == attention.PLAIN


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (1, "cpu", "not for cpu"),
        (5, 2, "all heads on one device, not on 2"),
        (2, 1024, "attention_probs_dropout_prob"),
        (3, ModelConfig(position_embedding_type="rotary"), "attention_probs_dropout_prob"),
        (2, 1000, "not 1000"),
    ],
)
def test_plain_attention_is_taken_elsewhere_and_the_kernel_refused(at, value, words):
    other = (*CHOICE[:at], value, *CHOICE[at + 1 :])
    choice = attention.choose(*other)
    assert choice.complete == attention.PLAIN
    assert choice.words.startswith("plain: ") and words in choice.words
    with pytest.raises(ValueError, match=f"attention is 'kernel', but .*{words}.*; set it to auto"):
        attention.choose("kernel", *other[1:])


@pytest.mark.parametrize(
    ("setting", "device", "seq_len", "model", "complete", "window"),
    [
        ("auto", "cpu", 512, NO_DROPOUT, attention.PLAIN, attention.PLAIN),
        ("auto", "cpu", 1024, NO_DROPOUT, attention.BLOCKS, attention.BLOCKS),
        ("auto", "cpu", 1024, ModelConfig(), attention.PLAIN, attention.PLAIN),
        ("auto", "cpu", 384, WINDOWS, attention.PLAIN, attention.PLAIN),
        ("auto", "cpu", 512, WINDOWS, attention.PLAIN, attention.BLOCKS),
        ("auto", "v5e", 8192, NO_DROPOUT, attention.FLASH, attention.FLASH),
        ("auto", "v5e", 8000, NO_DROPOUT, attention.BLOCKS, attention.BLOCKS),
        ("auto", "v3", 8192, NO_DROPOUT, attention.BLOCKS, attention.BLOCKS),
        ("auto", "v5e", 8192, WINDOWS, attention.FLASH, attention.FLASH),
        ("auto", "v5e", 8000, WINDOWS, attention.BLOCKS, attention.BLOCKS),
        ("auto", "v4", 2048, WINDOWS, attention.BLOCKS, attention.BLOCKS),
        ("kernel", "v5e", 256, WINDOWS, attention.FLASH, attention.FLASH),
        ("auto", "v5e", 512, CAUSAL, attention.KERNEL, attention.KERNEL),
        ("auto", "v5e", 2048, CAUSAL, attention.FLASH, attention.FLASH),
        ("auto", "cpu", 2048, CAUSAL, attention.BLOCKS, attention.BLOCKS),
        ("plain", "v5e", 8192, WINDOWS, attention.PLAIN, attention.PLAIN),
        ("blocks", "v5e", 128, NO_DROPOUT, attention.BLOCKS, attention.BLOCKS),
        ("auto", A100, 128, NO_DROPOUT, attention.CUDNN, attention.CUDNN),
        ("auto", A100, 2048, CAUSAL, attention.CUDNN, attention.CUDNN),
        ("auto", A100, 128, ModelConfig(), attention.PLAIN, attention.PLAIN),
        ("kernel", A100, 8192, WINDOWS, attention.CUDNN, attention.CUDNN),
        ("auto", A100, 384, WINDOWS, attention.CUDNN, attention.CUDNN),
        ("auto", A100, 8192, WINDOWS, attention.CUDNN, attention.BLOCKS),
        ("auto", A100, 8001, WINDOWS, attention.BLOCKS, attention.BLOCKS),
        ("auto", "Tesla V100-SXM2-16GB", 2048, CAUSAL, attention.BLOCKS, attention.BLOCKS),
    ],
)
def test_long_rows_take_what_keeps_no_scores(setting, device, seq_len, model, complete, window):
    choice = attention.choose(setting, device, seq_len, model, jnp.dtype("bfloat16"), 1)
    assert (choice.complete, choice.window) == (complete, window)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device_kind": "Tesla T4"}, "unlike Tesla T4"),
        ({"seq_len": 131}, "an even number of tokens, not 131"),
        ({"dtype": jnp.dtype("float32")}, "in bfloat16, not in float32"),
        ({"model_size": 2}, "cuDNN attention requires all heads on one device, not on 2"),
        *(
            ({"model": ModelConfig(position_embedding_type=name)}, f"no {name} positions")
            for name in ("relative", "disentangled")
        ),
        ({"model": ModelConfig()}, "cuDNN attention has no dropout .* sets to 0.1"),
        ({"model": ModelConfig(num_attention_heads=4)}, "a multiple of 8 up to 128, not 192"),
    ],
)
def test_a_gpu_is_told_the_reasons_of_its_own_kernel(change, reason):
    names = ("device_kind", "seq_len", "model", "dtype", "model_size")
    fits = dict(zip(names, (A100, 128, NO_DROPOUT, jnp.dtype("bfloat16"), 1), strict=True))
    words = attention.choose("auto", **(fits | change)).words
    assert words.startswith("plain: ") and re.search(reason, words) and "TPU" not in words
    with pytest.raises(ValueError, match=f"'kernel', but .*{reason}; set it to auto"):
        attention.choose("kernel", **(fits | change))


def test_blocks_are_refused_with_dropout_of_the_probabilities():
    with pytest.raises(ValueError, match=r"attention_probs_dropout_prob sets to 0\.1"):
        attention.choose("blocks", *CHOICE[1:])
    assert attention.choose("blocks", *CHOICE[1:], has_dropout=False).complete == attention.BLOCKS


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A10G",
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX A6000",
        "NVIDIA RTX 2000 Ada Generation",
        "NVIDIA GeForce RTX 5070 Ti",
    ],
)
def test_cudnn_is_for_cards_from_ampere_on(device):
    sizes = (8192, NO_DROPOUT, jnp.dtype("bfloat16"), 1)
    assert attention.choose("kernel", device, *sizes).complete == attention.CUDNN
    for older in ("Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA TITAN RTX"):
        assert f"unlike {older}" in attention.choose("auto", older, 128, *sizes[1:]).words


@pytest.mark.long
@pytest.mark.parametrize(("name", "rate"), [(attention.KERNEL, 0.1), (attention.CUDNN, 0.0)])
def test_the_kernel_in_the_model_is_the_plain_attention(monkeypatch, name, rate):
    """Its one matmul, the order of queries, keys and values, its biases and its dropout."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = dataclasses.replace(
        MODEL, **sizes, max_position_embeddings=128, attention_probs_dropout_prob=rate
    )
    batch = random_batch(batch_size=2, seq_len=128)
    calls = []

    def always(_, visible, *sizes):
        calls.append(sizes)
        return name if visible.ids_BS is not None else attention.PLAIN

    how = ComputeConfig(compute_dtype="bfloat16")
    expected = losses_and_gradients(model, batch, how)
    monkeypatch.setattr(attention, "choose_here", always)
    got = losses_and_gradients(model, batch, how)
    assert calls[0] == (128, model, jnp.bfloat16, rate > 0)
    assert got[0] == pytest.approx(expected[0], rel=2e-3)

    # The gradient of a key's bias is rounding alone: softmax does not see what all keys share.
    least = 0.01 * max(np.linalg.norm(leaf) for leaf in jax.tree.leaves(expected[1]))

    def same(path, got, expected):
        apart = np.linalg.norm(got - expected) / max(np.linalg.norm(expected), least)
        assert apart < 0.03, (jax.tree_util.keystr(path), apart)

    jax.tree_util.tree_map_with_path(same, got[1], expected[1])
