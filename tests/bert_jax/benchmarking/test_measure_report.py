"""What a measurement comes to, against numbers worked out by hand."""

import dataclasses
import types

import numpy as np
import pytest

from bert_jax.benchmarking import measure_report
from bert_jax.benchmarking.measure import Program, Spread, Timed
from bert_jax.config import Config, ModelConfig, Phase
from data_pipeline.spec.options import PretrainOptions

# BERT-Base at 128, by hand. Layers: 12 x (4 x 768^2 + 8 x 768^2) = 84,934,656 weights, 6 operations
# each at 128 positions: 65,229,815,808. Attention: 12 x 12 x 768 x 128^2 = 1,811,939,328. Masked
# LM: 6 x (768 + 30,522) x 768 x 20 = 2,883,686,400. Pooler, next sentence: 6 x 770 x 768 =
# 3,548,160.
BASE_AT_128 = 69_928_989_696.0
TIMED = Timed(
    0.5, 5, (0.25, 0.25, 0.5, 0.25), Spread(0.25, 0.25, 0.25, 0.3125, 0.5), 11, "compiler"
)


def program(kind: str, packed_examples: int = 1) -> Program:
    device = types.SimpleNamespace(device_kind=kind, platform="tpu")
    config = Config(
        model=ModelConfig(vocab_size=30_522),
        phases=(Phase(128, 10, batch_size=64, max_predictions_per_seq=20),),
        data=PretrainOptions(packed_examples=packed_examples),
    )
    return Program(
        config=config,
        model=types.SimpleNamespace(parameter_count=7, dtype="bfloat16"),
        mesh=types.SimpleNamespace(devices=np.array([[device] * 4]), shape={"data": 4}),
        first_state=lambda: None,
        take=lambda state, batch: None,
        compile_secs=3.0,
        memory_bytes=11,
    )


def batches() -> list[dict[str, np.ndarray]]:
    """Two batches of 64 rows, half and three quarters full."""
    return [
        {"input_ids": np.ones((64, 128)), "input_mask": np.tile(np.arange(128) < n, (64, 1))}
        for n in (64, 96)
    ]


def test_rates_and_utilization_by_hand():
    report = measure_report.make_report(program("TPU v5 lite"), batches(), "made up", TIMED)
    assert report.flops_per_row == BASE_AT_128
    assert report.rows_per_sec == report.sequences_per_sec == 64 / 0.25
    assert (report.tokens_per_step, report.token_share) == (64 * 80, 0.625)
    assert report.tokens_per_sec == 64 * 80 * 4
    assert (report.steps, report.group_steps) == (20, 5)
    # 256 rows a second of 69.93 GFLOP, over four chips of 197 TFLOP/s
    assert report.utilization == pytest.approx(256 * BASE_AT_128 / (4 * 197e12), rel=1e-12)
    assert f"{report.utilization:.2%}" == "2.27%"
    words = " ".join(text for _, text in measure_report.format_report(report))
    assert "2.3% = 69.93 GFLOP a row x 256.0 rows/s / (4 x 197.0 TFLOP/s, the bfloat16" in words


def test_a_causal_phase_predicts_every_position_from_those_before_it():
    made = program("TPU v5 lite")
    phase = dataclasses.replace(made.phase, objective="causal")
    config = dataclasses.replace(made.config, phases=(phase,))
    made = dataclasses.replace(made, config=config)
    report = measure_report.make_report(made, batches(), "made up", TIMED)
    # Attention: 12 x 12 x 768 x (128 x 129 / 2); the head at 128 positions in place of 20.
    pairs, head = 110_592 * (128**2 - 8256), 6 * (768 + 30_522) * 768
    assert report.flops_per_row == BASE_AT_128 - pairs + 108 * head


@pytest.mark.parametrize(("kind", "peak"), [("TPU v3", 61.5e12), ("abacus", None)])
def test_a_core_has_half_its_chips_peak_and_an_unknown_kind_none(kind, peak):
    report = measure_report.make_report(program(kind), batches(), "made up", TIMED)
    assert (report.peak_flops_per_sec, report.utilization is None) == (peak, peak is None)
    assert report.peak_memory_bytes == 11 and report.peak_memory_by == "compiler"
    skipped = ("utilization", f"left out: the peak of {kind!r} is not known")
    assert (skipped in measure_report.format_report(report)) == (peak is None)


def test_examples_of_packed_rows_are_counted_not_rows():
    ids_BS = np.zeros((64, 128), np.int32)
    ids_BS[:, :40], ids_BS[:32, 40:70] = 1, 2
    batch = {"input_ids": ids_BS, "input_mask": ids_BS > 0, "example_ids": ids_BS}
    timed = dataclasses.replace(TIMED, peak_memory_bytes=13, peak_memory_by="device")
    report = measure_report.make_report(program("TPU v4", 8), [batch], "store", timed)
    assert report.examples_per_step == 96
    assert report.sequences_per_sec == 384
    assert report.tokens_per_step == 64 * 40 + 32 * 30
    assert report.predictions_per_row == 23  # 19.2 of the text, and half a slot an example
    assert (report.peak_memory_bytes, report.peak_memory_by) == (13, "device")
