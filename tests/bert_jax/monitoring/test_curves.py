"""Curves of a run: what metrics.jsonl says, in bounded size, whatever a kill leaves behind."""

import json
import tracemalloc

import numpy as np
import pytest

from bert_jax.monitoring.run_state import read_curves
from data_pipeline.io import small_files
from data_pipeline.io.small_files import DamagedFile


def line(step, value, split="train", name="loss"):
    return json.dumps({"step": step, "split": split, name: value}) + "\n"


def test_each_value_is_at_its_step_and_split(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(10, 3.5) + line(10, 4.5, "heldout") + line(20, 2.5))
    curves = read_curves(path)
    np.testing.assert_array_equal(curves.select("train", "loss"), [[10, 20], [3.5, 2.5]])
    np.testing.assert_array_equal(curves.select("heldout", "loss"), [[10], [4.5]])
    assert (curves.last_step, curves.damaged_lines) == (20, 0)
    assert curves.list_newest("heldout") == {"loss": 4.5}
    assert curves.list_newest("train") == {"loss": 2.5}


def test_a_run_without_lines_has_no_curves(tmp_path):
    assert read_curves(tmp_path / "metrics.jsonl").points == {}
    (tmp_path / "metrics.jsonl").touch()
    assert read_curves(tmp_path / "metrics.jsonl").last_step == 0


@pytest.mark.parametrize(
    ("end", "steps", "damaged"),
    [
        (line(20, 2.0)[:-9], [10], 0),
        (line(20, 2.0).rstrip(), [10, 20], 0),
        ("\0" * 50, [10], 0),
        ("nonsense\n" + line(20, 2.0), [10, 20], 1),
        ("[1]\n" + line(20, 2.0), [10, 20], 1),
        ("1,2\n" + line(20, 2.0), [10, 20], 1),
        ('{"step": 20, "split": "train", "loss": "2"}\n', [10], 1),
        ('{"step": -1, "split": "train", "loss": 2}\n', [10], 1),
        (line(20, float("nan")), [10], 0),
        (line(20, 10**400), [10], 1),
        ('{"step": 1e999, "split": "train", "loss": 2}\n', [10], 1),
    ],
)
def test_what_a_kill_leaves_behind_is_skipped(tmp_path, end, steps, damaged):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(10, 1.0) + end)
    curves = read_curves(path)
    assert curves.select("train", "loss")[0].tolist() == steps
    assert curves.damaged_lines == damaged


def test_a_repeated_step_replaces_the_steps_from_it_on_in_its_split(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = "".join(line(step, float(step)) for step in (10, 20, 30))
    lines += line(30, 7.0, "heldout") + line(20, -1.0)
    path.write_text(lines)
    curves = read_curves(path)
    np.testing.assert_array_equal(curves.select("train", "loss"), [[10, 20], [10, -1]])
    assert curves.list_newest("heldout") == {"loss": 7.0}
    path.write_text(lines + line(20, -2.0))  # of the last step alone
    np.testing.assert_array_equal(read_curves(path).select("train", "loss"), [[10, 20], [10, -2]])


def test_findings_are_no_lines_of_numbers(tmp_path):
    finding = {"rule": "flat", "step": 5, "sentence": "It is flat.", "try": "A lower rate."}
    finding["split"] = "finding"
    (tmp_path / "metrics.jsonl").write_text(json.dumps(finding) + "\n")
    curves = read_curves(tmp_path / "metrics.jsonl")
    assert (curves.findings, curves.damaged_lines, curves.points) == ((finding,), 0, {})


@pytest.mark.slow
def test_a_long_curve_keeps_its_ends_and_its_extremes_in_bounded_memory(tmp_path):
    count = 20_000
    values = np.random.default_rng(0).normal(size=count)
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        file.writelines(line(step, value) for step, value in enumerate(values.tolist()))
    tracemalloc.start()
    steps, kept = read_curves(path, 400).select("train", "loss")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(steps) <= 400
    assert (steps[0], steps[-1]) == (0, count - 1)
    np.testing.assert_array_equal(kept, values[steps.astype(int)])
    assert (kept.min(), kept.max()) == (values.min(), values.max())
    # No part of the run is thinned more than another.
    quarters = np.histogram(steps, 4, (0, count))[0]
    assert quarters.max() < 1.2 * quarters.min()
    assert peak < path.stat().st_size


def test_a_line_without_an_end_is_read_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(small_files, "MAX_BYTES", 1 << 16)
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(10, 1.0) + "x" * 4_000_000 + "\n" + line(20, 2.0))
    tracemalloc.start()
    curves = read_curves(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert curves.select("train", "loss")[0].tolist() == [10, 20]
    assert curves.damaged_lines == 1 and peak < 1 << 20


def test_a_pipe_or_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "other").write_text(line(1, 1.0))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(DamagedFile, match=r"metrics\.jsonl is a link out of"):
        read_curves(tmp_path / "run/metrics.jsonl")
