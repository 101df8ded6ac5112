"""Operations of a training row, against sums written out by hand."""

import dataclasses

import pytest

from bert_jax.config import DistillConfig, ModelConfig
from bert_jax.model import flops

BASE = ModelConfig(vocab_size=30_522)


@pytest.mark.parametrize(
    ("seq_len", "predictions", "billions"),
    [
        # 12 layers of 4 x 768^2 + 2 x 768 x 3072 = 7,077,888 weights; head 31,290 x 768 weights.
        (128, 20, 65.2298 + 1.8119 + 2.8837 + 0.0035),
        (512, 77, 260.9192 + 28.9910 + 11.1022 + 0.0035),
    ],
)
def test_base_as_added_up_by_hand(seq_len, predictions, billions):
    got = flops.count_train_flops(BASE, seq_len, predictions)
    assert got == pytest.approx(billions * 1e9, rel=1e-4)


def test_windows_gates_and_narrow_embeddings_cost_what_they_multiply():
    plain = ModelConfig(vocab_size=0, num_hidden_layers=3, hidden_size=8, intermediate_size=10)
    seq_len, width = 9, 8
    pairs = sum(abs(i - j) <= 2 for i in range(seq_len) for j in range(seq_len))
    windowed = dataclasses.replace(plain, global_attn_every_n_layers=2, local_attention=4)
    saved = 12 * width * (seq_len**2 - pairs)  # the second of three layers has a window
    gated = dataclasses.replace(plain, gated_mlp=True)
    narrow = dataclasses.replace(plain, embedding_size=5)
    one_term = dataclasses.replace(
        plain, position_embedding_type="disentangled", pos_att_type="c2p"
    )
    bare = dataclasses.replace(plain, mlm_transform=False)
    before = flops.count_train_flops(plain, seq_len, 2)
    assert flops.count_train_flops(bare, seq_len, 2) == before - 6 * width**2 * 2
    assert flops.count_train_flops(windowed, seq_len, 2) == before - saved
    assert flops.count_train_flops(gated, seq_len, 2) == before + 6 * 3 * width * 10 * seq_len
    terms = 6 * 3 * width * seq_len**2
    assert flops.count_train_flops(one_term, seq_len, 2) == before + terms
    head = 6 * width * (width - 5) * 2
    assert flops.count_train_flops(narrow, seq_len, 2) == before - head + 6 * 5 * width * seq_len


SIZES = {"vocab_size": 0, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 20}


def test_what_asks_at_the_masked_positions_alone_costs_what_it_multiplies_there():
    """The second stream of XLNet's layers; a generator whose mask decoder asks twice."""
    width, units, seq_len, slots = 8, 20, 9, 2

    def count_more(plain, **changes):
        models = plain, dataclasses.replace(plain, **changes)
        before, after = (flops.count_train_flops(model, seq_len, slots) for model in models)
        return (after - before) / 6

    second = (2 * width**2 + 2 * width * units + 3 * width * seq_len) * slots
    relative = ModelConfig(**SIZES | {"num_hidden_layers": 3})
    more = count_more(relative, position_embedding_type="relative")
    assert more == 3 * (width * seq_len**2 + second)

    layer = (4 * width**2 + 2 * width * units) * seq_len + 4 * width * seq_len**2
    asked = (2 * width**2 + 2 * width * units + 4 * width * seq_len) * slots
    generator = {"generator_hidden_size": width, "generator_intermediate_size": units}
    disentangled = ModelConfig(**SIZES, **generator, position_embedding_type="disentangled")
    more = count_more(disentangled, enhanced_mask_decoder=True)
    assert more == 2 * width**2 * seq_len + 2 * asked - layer


def test_a_teacher_costs_a_third_of_what_it_is_read_for():
    layers = 65.2298e9 + 1.8119e9
    taught = flops.count_teacher_flops
    whole = taught(BASE, DistillConfig(), "distillation", 128, 20)
    assert whole == pytest.approx((layers + 2.8837e9) / 3, rel=1e-4)
    silent = DistillConfig(soft_weight=0.0)
    assert taught(BASE, silent, "distillation", 128, 20) == pytest.approx(layers / 3, rel=1e-4)
    half = DistillConfig(teacher_layer=6)
    expected = pytest.approx(layers / 6, rel=1e-4)
    assert taught(BASE, half, "relation_distillation", 128, 20) == expected
    assert taught(BASE, half, "mlm", 128, 20) == 0
