"""python -m bert_jax.benchmark as a user runs it: numbers on the screen and in a file; refusals."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from bert_jax.benchmarking.measure_report import StepReport

SMALL = (
    "--config=configs/tiny.py",
    "--config.model.hidden_size=16",
    "--config.model.num_hidden_layers=1",
    "--config.model.intermediate_size=32",
)


def benchmark(*flags: str, **changed: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bert_jax.benchmark", *SMALL, *flags]
    return subprocess.Popen(
        command,
        env=os.environ | changed,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_it_times_the_step_on_a_store(tiny_store, tmp_path):
    out = tmp_path / "numbers.json"
    flags = ["--seq_len=64", "--batch_size=30", "--steps=43", "--config.data.packed_examples=4"]
    measured = benchmark(f"--config.data.store={tiny_store}", f"--json_out={out}", *flags)
    said, errors = measured.communicate()
    assert (measured.returncode, errors) == (0, "")
    assert "30 rows of 64, up to 4 examples in a row: by --batch_size" in said
    assert "42 steps in 14 groups" in said
    assert "utilization   left out: the peak of 'cpu' is not known" in said

    numbers = json.loads(out.read_text())
    assert numbers.keys() == {field.name for field in dataclasses.fields(StepReport)}
    assert (numbers["seq_len"], numbers["rows_per_step"], numbers["batches"]) == (64, 30, "store")
    assert len(numbers["group_step_secs"]) == 14 and min(numbers["group_step_secs"]) > 0
    step = numbers["step_secs"]
    assert step["least"] <= step["lower_quartile"] <= step["median"] <= step["upper_quartile"]
    assert 30 < numbers["examples_per_step"] <= 120 and 0.3 < numbers["token_share"] <= 1.0
    assert numbers["sequences_per_sec"] == numbers["examples_per_step"] / step["median"]
    assert numbers["config"]["phases"][0]["max_predictions_per_seq"] == 10
    assert (numbers["utilization"], numbers["peak_memory_by"]) == (None, "compiler")


@pytest.mark.long
def test_a_step_that_does_not_fit_is_refused():
    # Without the tests' flags: the older emitters refuse a step of a hundred million rows.
    many = ["--config.model.vocab_size=97", "--batch_size=100000000"]
    too_large = benchmark(*many, XLA_FLAGS="")
    _, errors = too_large.communicate()
    assert too_large.returncode == 1
    assert errors.startswith("error: a step of 100,000,000 rows of 64 needs ")
    assert errors.count("\n") == 1
