"""The comparison without the programs compared: ratios, shares of the peak, what is refused."""

import contextlib
import math
import pathlib
import sys
import types

import numpy as np
import pytest

from benchmarks.step import side_by_side
from benchmarks.step.cases import CASES
from benchmarks.step.workers import Worker

ROUNDS = [
    {"hf_ms": 30.0, "our_ms": 10.0},
    {"hf_ms": 20.0, "our_ms": 20.0},
    {"hf_ms": 40.0, "our_ms": 20.0},
]


def test_a_ratio_is_of_a_round_and_the_median_of_rounds():
    assert side_by_side.ratio_of(ROUNDS, "ms") == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_both_sides_are_credited_the_same_operations():
    shares = side_by_side.utilization(CASES["base-128"], ROUNDS, "NVIDIA H100 80GB HBM3")
    # 69,928,989,696 operations a row (from tests/bert_jax/benchmarking/test_measure_report.py), 64
    # rows, 989.4 TFLOP/s
    assert shares["hf"] == pytest.approx(64 * 69_928_989_696 / 30e-3 / 989.4e12)
    assert shares["our"] == pytest.approx(shares["hf"] * 30 / 20)
    assert side_by_side.utilization(CASES["base-128"], ROUNDS, "cpu") is None


def test_models_of_different_sizes_are_not_compared(tmp_path):
    def side(parameters: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(ask=lambda name, **request: {"parameters": parameters})

    other = side_by_side.Theirs("TheirBert", pathlib.Path(), "", {}, {}, lambda *_: {})
    with pytest.raises(ValueError, match=r"TheirBert has 1,001 parameters, we 1,000"):
        side_by_side.build(other, (side(1001), side(1000)), CASES["4x256"], tmp_path)


@pytest.mark.parametrize(
    ("loss", "gradient", "is_same"),
    [(2.0, 1.0, True), (2.1, 1.0, False), (math.nan, 1.0, False), (2.0, math.nan, False)],
)
def test_losses_and_gradients_that_are_no_numbers_do_not_agree(
    monkeypatch, loss, gradient, is_same
):
    def make_side(loss, gradient):
        def ask(name, **request):
            if name == "gradients":
                np.savez(request["out_file"], kernel=np.ones(2), bias=np.array([1.0, gradient]))
                return {"mlm": loss}
            if name == "save_params":
                np.savez(request["file"], kernel=np.ones(2), bias=np.ones(2))
            return {"parameters": 1}

        return types.SimpleNamespace(ask=ask)

    def read_as_ours(arrays, layers):
        return dict(arrays)

    sides = make_side(2.0, 1.0), make_side(loss, gradient)
    monkeypatch.setattr(side_by_side, "both_sides", lambda *_: contextlib.nullcontext(sides))
    other = side_by_side.Theirs("TheirBert", pathlib.Path(), "", {}, {}, read_as_ours)
    if is_same:
        agreement = side_by_side.check_agreement(other, CASES["4x256"])
        assert agreement["worst_gradient_difference"] == 0.0
    else:
        with pytest.raises(ValueError, match="the two sides compute different things"):
            side_by_side.check_agreement(other, CASES["4x256"])


def test_a_worker_that_ends_is_named():
    worker = Worker(pathlib.Path(sys.executable), "benchmarks.no_such_worker")
    with pytest.raises(RuntimeError, match=r"benchmarks\.no_such_worker ended with exit code 1"):
        worker.ask("build")
    worker.close()
