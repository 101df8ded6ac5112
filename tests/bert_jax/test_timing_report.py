"""What a measurement comes to, against numbers worked out by hand."""

import dataclasses
import types

import numpy as np
import pytest

from bert_jax import timing_report
from bert_jax.config import Config, ModelConfig, Phase
from bert_jax.timing import Program, Spread, Timed
from data_pipeline.options import PretrainOptions

# BERT-Base at 128, by hand. Layers: 12 x (4 x 768^2 + 8 x 768^2) = 84,934,656 weights, 6 operations
# each at 128 positions: 65,229,815,808. Attention: 12 x 12 x 768 x 128^2 = 1,811,939,328. Masked
# LM: 6 x (768 + 30,522) x 768 x 20 = 2,883,686,400. Pooler, next sentence: 6 x 770 x 768 =
# 3,548,160.
BASE_AT_128 = 69_928_989_696.0
TIMED = Timed(0.5, 5, (0.25, 0.25, 0.5, 0.25), Spread(0.25, 0.25, 0.25, 0.3125, 0.5), None)


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


def test_rates_and_utilisation_by_hand():
    report = timing_report.report(program("TPU v5 lite"), batches(), "made up", TIMED)
    assert report.flops_per_row == BASE_AT_128
    assert report.rows_per_sec == report.sequences_per_sec == 64 / 0.25
    assert (report.tokens_per_step, report.token_share) == (64 * 80, 0.625)
    assert report.tokens_per_sec == 64 * 80 * 4
    assert (report.steps, report.group_steps) == (20, 5)
    # 256 rows a second of 69.93 GFLOP, over four chips of 197 TFLOP/s
    assert report.utilisation == pytest.approx(256 * BASE_AT_128 / (4 * 197e12), rel=1e-12)
    assert f"{report.utilisation:.2%}" == "2.27%"
    words = " ".join(text for _, text in timing_report.in_words(report))
    assert "2.3% = 69.93 GFLOP a row x 256.0 rows/s / (4 x 197.0 TFLOP/s, the bfloat16" in words


def test_half_a_chip_has_half_of_its_peak():
    report = timing_report.report(program("TPU v3"), batches(), "made up", TIMED)
    assert report.peak_flops_per_sec == 61.5e12


def test_a_kind_without_a_known_peak_has_no_utilisation():
    report = timing_report.report(program("abacus"), batches(), "made up", TIMED)
    assert (report.peak_flops_per_sec, report.utilisation) == (None, None)
    assert ("utilisation", "left out: the peak of 'abacus' is not known") in timing_report.in_words(
        report
    )


def test_examples_of_packed_rows_are_counted_not_rows():
    ids_BS = np.zeros((64, 128), np.int32)
    ids_BS[:, :40], ids_BS[:32, 40:70] = 1, 2
    batch = {"input_ids": ids_BS, "input_mask": ids_BS > 0, "example_ids": ids_BS}
    report = timing_report.report(program("TPU v4", 8), [batch], "store", TIMED)
    assert report.examples_per_step == 96
    assert report.sequences_per_sec == 384
    assert report.tokens_per_step == 64 * 40 + 32 * 30
    assert report.predictions_per_row == 23  # 19.2 of the text, and half a slot an example


def test_memory_is_the_devices_count_or_the_compilers():
    unknown = timing_report.report(program("TPU v4"), batches(), "made up", TIMED)
    assert (unknown.peak_memory_bytes, unknown.peak_memory_by) == (11, "compiler")
    timed = dataclasses.replace(TIMED, peak_memory_bytes=13)
    known = timing_report.report(program("TPU v4"), batches(), "made up", timed)
    assert (known.peak_memory_bytes, known.peak_memory_by) == (13, "device")
