"""A probe without a run: what is fine-tuned from next, what a folder may hold, what is drawn."""

import json

import numpy as np
import pytest

from bert_jax import probing
from bert_jax.probing import Measured, Shown

SHOWN = Shown("RTE", "accuracy", 0.527)


@pytest.mark.parametrize(
    ("saved", "done", "every_steps", "is_over", "wanted"),
    [
        ([], [], 1, False, None),
        ([0, 40, 80], [], 1, False, 80),  # the newest first
        ([0, 40, 80], [80], 1, False, 40),  # then what is still there
        ([0, 40, 80], [0, 40, 80], 1, False, None),
        ([120, 140], [80], 60, False, 140),
        ([120], [80], 60, False, None),
        ([120], [80], 60, True, 120),  # but the last one of a run that is over has its score
        ([100, 120], [80, 120], 60, True, None),
        ([40], [80], 40, False, 40),
    ],
)
def test_the_next_checkpoint(saved, done, every_steps, is_over, wanted):
    assert probing.next_step(saved, done, every_steps, is_over) == wanted


def test_every_checkpoint_gets_its_turn_once():
    saved, done = {0, 10, 20, 30}, []
    while (step := probing.next_step(saved, done, 1, is_over=True)) is not None:
        done.append(step)
    assert done == [30, 20, 10, 0]


def test_a_folder_goes_on_with_the_same_probe_and_refuses_another(tmp_path):
    folder = tmp_path / "probe"
    probed = {"run": "runs/mine", "config": {"epochs": 1.0, "phases": ()}}
    probing.claim(folder, probed)
    probing.claim(folder, probed)
    other = {"run": "runs/mine", "config": {"epochs": 2.0, "phases": ()}}
    with pytest.raises(ValueError, match=r"config = .*'epochs': 1.0.*now .*'epochs': 2.0"):
        probing.claim(folder, other)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("notes.txt", "", "is not empty and holds no probe"),
        (probing.PROBE, "[1", r"probe\.json is not JSON"),
    ],
)
def test_other_folders_are_refused(tmp_path, file, content, words):
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=words):
        probing.claim(tmp_path, {})


def test_scores_are_read_by_step_whatever_was_measured_first(tmp_path):
    for step, score in ((40, 0.6), (0, 0.5), (20, 0.55)):
        probing.add(tmp_path, Measured(step, score, 1.0))
    assert [(one.step, one.score) for one in probing.read(tmp_path)] == [
        (0, 0.5),
        (20, 0.55),
        (40, 0.6),
    ]


def test_a_killed_probe_leaves_half_a_line_that_does_not_count(tmp_path):
    probing.add(tmp_path, Measured(20, 0.5, 1.0))
    with (tmp_path / probing.LINES).open("a") as file:
        file.write('{"step": 40, "sc')
    assert [one.step for one in probing.read(tmp_path)] == [20]


def test_lines_of_something_else_are_refused(tmp_path):
    (tmp_path / probing.LINES).write_text(json.dumps({"step": 1, "split": "train"}) + "\n")
    with pytest.raises(ValueError, match=r"probe\.jsonl .*'split'"):
        probing.read(tmp_path)


def test_the_picture_has_the_scores_over_the_steps_and_the_baseline(tmp_path):
    measured = [Measured(step, 0.5 + step / 1000, 1.0) for step in (0, 40, 80)]
    (ax,) = probing.figure(measured, SHOWN).axes
    curve, baseline = ax.get_lines()
    np.testing.assert_allclose(curve.get_xydata(), [[0, 0.5], [40, 0.54], [80, 0.58]])
    assert set(baseline.get_ydata()) == {0.527}
    assert {text.get_text() for text in ax.texts} == {"0.580", "baseline\n0.527"}
    path = probing.draw(tmp_path, measured[:1], SHOWN)
    assert path.read_bytes().startswith(b"\x89PNG")
