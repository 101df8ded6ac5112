"""The learning rate over a run, against the schedule's formula in NumPy."""

import dataclasses

import numpy as np
import pytest
from matplotlib import image

from bert_jax import rate_plot
from bert_jax.config import Config, OptimConfig, Phase

PHASES = (
    Phase(seq_len=16, steps=700, max_predictions_per_seq=2),
    Phase(
        seq_len=32,
        steps=300,
        max_predictions_per_seq=4,
        restart_learning_rate=0.5,
        restart_warmup_steps=30,
    ),
)
CONFIG = Config(phases=PHASES, optim=OptimConfig(learning_rate=1.0, warmup_steps=70))


def rate(step: int) -> float:
    """Google's schedule: up over the warm-up, then down as if there had been none."""
    first, steps, peak, warmup = (0, 700, 1.0, 70) if step < 700 else (700, 300, 0.5, 30)
    done = step - first
    return peak * done / warmup if done < warmup else peak * (1 - done / steps)


def test_rates_are_those_of_the_schedule_and_every_bend_is_among_them():
    steps, rates = rate_plot.rates(CONFIG, most=11)
    expected = [rate(int(step)) for step in steps]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)
    assert {0, 69, 70, 699, 700, 729, 730, 999} <= set(steps.tolist())
    assert len(steps) < 25


def test_letters_rise_and_fall_with_the_rate():
    one = dataclasses.replace(CONFIG, phases=PHASES[:1])
    lines = rate_plot.in_letters(one, width=70, height=3)
    assert [len(line) for line in lines] == [70, 70, 70]
    heights = [sum(" ▁▂▃▄▅▆▇█".index(line[at]) for line in lines) for at in range(70)]
    expected = [24 * rate(10 * at + 5) for at in range(70)]
    highest = max(expected)
    np.testing.assert_allclose(heights, 24 * np.array(expected) / highest, atol=1.6)


def test_a_picture_of_it(tmp_path):
    path = tmp_path / "rate.png"
    rate_plot.draw(CONFIG, path)
    height, width, _ = image.imread(path).shape
    assert (height, width) == (pytest.approx(420, abs=2), pytest.approx(1080, abs=2))
