"""Plans of a phase from compiled texts made up for it: estimates by hand, and what is tried."""

import dataclasses

import pytest

from bert_jax import config as config_lib
from bert_jax.config import Config, MeshConfig, ModelConfig, Phase
from bert_jax.planning import chip_prices, estimate, slices
from bert_jax.planning.aot_compile import Compiled, Memory, TooLarge
from tests.bert_jax.planning.test_aot_compile import STEP

V5E = slices.find_slice("v5e:2x2")
GIB = 2**30
MODEL = ModelConfig(vocab_size=30_522)
CONFIG = Config(
    model=MODEL,
    mesh=MeshConfig(preset="dp"),
    phases=(Phase(seq_len=128, steps=1000, batch_size=32, max_predictions_per_seq=20),),
)
TEXT = """HloModule jit_step

ENTRY %main (p: f32[8]) -> f32[8] {
  %f = f32[8]{0} fusion(%p), calls=%x, backend_config={"estimated_cycles":"3000000"}
  %k.1 = f32[8]{0} custom-call(%f), custom_call_target="tpu_custom_call"
  %attention_forward.2 = f32[8]{0} custom-call(%f), custom_call_target="tpu_custom_call"
  %c = f32[1000000]{0} all-reduce(%f), replica_groups={{0,1,2,3}}
}
"""


def compiled() -> Compiled:
    return dataclasses.replace(STEP, text=TEXT, memory=Memory(0, 0, 0, GIB, 0))


def test_an_estimate_is_work_and_what_collectives_add(monkeypatch):
    price = {"attention_forward": 10_000.0}
    monkeypatch.setattr(chip_prices, "look_up_cycles", lambda shape: price)
    found = estimate.estimate_step(CONFIG, 0, V5E, compiled())
    # 8 rows a chip; 4 MB over two links of 50 GB/s, of which 2 x 3/4 leave a chip.
    assert found.cycles == 3_000_000 + 8 * 10_000
    assert found.work_secs == pytest.approx(3.08e6 / 1.5e9)
    assert found.exposed_secs == pytest.approx(1.5 * 4e6 / 100e9)
    assert found.step_secs == pytest.approx(found.work_secs + found.exposed_secs)
    assert found.rows_per_sec_per_chip == pytest.approx(8 / found.step_secs)
    # Base at 128: 69.93 GFLOP a row, 197 TFLOP/s a chip.
    assert found.peak_share == pytest.approx(8 * 69.9285e9 / found.step_secs / 197e12, rel=1e-4)
    assert found.kernel_cycles == {"attention_forward": 80_000}
    assert found.unpriced_kernels == {"k": 1}


def test_who_learns_relations_predicts_no_words():
    student = dataclasses.replace(CONFIG, objective="relation_distillation")
    # Base at 128 without the 2.8837 GFLOP of its head.
    assert estimate.count_row_flops(student, 0) == pytest.approx(67.0452e9, rel=1e-4)


def test_a_price_is_asked_for_the_heads_of_a_device(monkeypatch):
    asked = []
    monkeypatch.setattr(chip_prices, "look_up_cycles", lambda shape: asked.append(shape) or {})
    of_two = dataclasses.replace(compiled(), mesh={"slice": 1, "data": 2, "fsdp": 1, "model": 2})
    estimate.estimate_step(CONFIG, 0, V5E, of_two)
    flash = chip_prices.KernelShape("v5e", 128, 6, 64, False, "flash")
    assert asked == [chip_prices.KernelShape("v5e", 128, 6, 64, True), flash]


def add_kernel(scope):
    """The program with the attention kernel once more, in a scope."""
    (own,) = [line for line in TEXT.splitlines() if "%attention_forward" in line]
    other = own.replace("forward.2", "forward.3") + f', metadata={{op_name="{scope}"}}\n'
    return TEXT.replace(own, other + own)


def test_the_kernels_of_a_teacher_have_its_own_price_or_none(monkeypatch):
    text = add_kernel("jit(step)/of_the_teacher/layer")
    teacher = dataclasses.replace(MODEL, num_attention_heads=6)
    config = dataclasses.replace(CONFIG, objective="distillation", teacher="hf:DIR")
    for theirs, cycles, unpriced in ((3_000.0, 8 * 13_000, 1), (None, 8 * 10_000, 2)):

        def look_up(shape, theirs=theirs):
            is_own = shape.heads == 12
            assert shape.has_dropout == (is_own and shape.kernel == "attention")
            price = 10_000.0 if is_own else theirs
            return {} if price is None else {"attention_forward": price}

        monkeypatch.setattr(chip_prices, "look_up_cycles", look_up)
        of_both = dataclasses.replace(compiled(), text=text)
        found = estimate.estimate_step(config, 0, V5E, of_both, teacher)
        assert found.cycles == 3_000_000 + cycles
        assert sum(found.unpriced_kernels.values()) == unpriced
    alone = estimate.estimate_step(CONFIG, 0, V5E, compiled())
    # A forward pass of Base at 128 with the head on 20 tokens: a third of 69.925 GFLOP.
    ratio = found.peak_share * found.step_secs / (alone.peak_share * alone.step_secs)
    assert ratio == pytest.approx(1 + 69.925 / 3 / 69.9285, rel=1e-4)
    assert Memory(1, 2, 3, 4, 5, teacher=6).total == 21


def test_the_kernels_of_a_generator_have_its_own_price(monkeypatch):
    text = add_kernel("jit(step)/jvp(of_the_generator)/attention_forward")
    electra = dataclasses.replace(MODEL, generator_hidden_size=256)
    config = dataclasses.replace(CONFIG, objective="rtd", model=electra)

    def look_up(shape):
        return {"attention_forward": {12: 10_000.0, 4: 3_000.0}[shape.heads]}

    monkeypatch.setattr(chip_prices, "look_up_cycles", look_up)
    found = estimate.estimate_step(config, 0, V5E, dataclasses.replace(compiled(), text=text))
    assert found.cycles == 3_000_000 + 8 * 13_000


def plan(compile_step):
    return estimate.plan_phase(CONFIG, 0, V5E, compile_step)


def test_a_step_that_fits_is_compiled_once():
    calls = []
    made, step = plan(lambda config, words: calls.append(config) or compiled())
    assert (made.fits, made.needed_bytes, made.rows_per_chip) == (True, GIB, 8)
    assert step is not None and len(calls) == 1 and made.alternatives == []


def tried(fits) -> tuple[list[tuple[str, str, int]], estimate.PhasePlan]:
    """Settings in the order in which they were compiled, where those fit that `fits` names."""
    calls = []

    def compile_step(config, words):
        phase = config.phases[0]
        calls.append((config.mesh.preset, config.compute.remat, phase.micro_batches))
        return compiled() if fits(*calls[-1]) else TooLarge(40 * GIB, 16 * GIB)

    return calls, plan(compile_step)[0]


def test_where_it_does_not_fit_each_setting_is_tried_alone():
    calls, made = tried(lambda preset, remat, parts: parts == 4)
    alone = [("zero1", "none", 1), ("dp", "none", 2), ("dp", "none", 4), ("dp", "layer", 1)]
    assert calls == [("dp", "none", 1), *alone]
    assert not made.fits and made.estimate is None and made.needed_bytes == 40 * GIB
    assert [other.fits for other in made.alternatives] == [False, False, True, False]
    assert made.alternatives[2].settings == {"config.phases[0].micro_batches": 4}
    assert made.alternatives[2].step_secs is not None


def test_where_none_of_them_fits_alone_they_are_joined():
    calls, made = tried(lambda *given: given == ("zero1", "layer", 2))
    assert calls[-3:] == [("dp", "layer", 1), ("zero1", "layer", 1), ("zero1", "layer", 2)]
    assert made.alternatives[-1].fits
    assert made.alternatives[-1].settings == {
        "config.mesh.preset": "zero1",
        "config.compute.remat": "layer",
        "config.phases[0].micro_batches": 2,
    }


def test_it_ends_where_nothing_fits():
    calls, made = tried(lambda *settings: False)
    assert len(calls) == len(set(calls)) == 1 + 1 + 3 + 1 + 4
    assert not any(other.fits for other in made.alternatives)


def test_settings_that_the_config_has_already_are_not_tried():
    config = config_lib.set_fields(
        CONFIG,
        {"mesh.preset": "fsdp", "compute.remat": "layer", "phases[0].batch_size": 4},
    )
    calls = []

    def compile_step(config, words):
        calls.append(words)
        return TooLarge(40 * GIB, 16 * GIB)

    made, _ = estimate.plan_phase(config, 0, V5E, compile_step)
    assert calls == ["4 rows of 128"] and made.alternatives == []
