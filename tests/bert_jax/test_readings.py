"""The lines of a resumed run, with devices and time that the test makes pass."""

from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax import clock, metrics
from bert_jax.clock import Clock, Progress
from bert_jax.config import Config, Phase
from bert_jax.readings import Readings, RunningPhase

STEP_SECS, BATCH = 2.0, 8


@pytest.fixture
def now(monkeypatch):
    secs = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: secs[0])
    return secs


class Leaf:
    """What a step returns: at hand once the step has ended."""

    def __init__(self, now, end_secs):
        self.now, self.end_secs = now, end_secs

    def copy_to_host_async(self):
        pass

    def __array__(self, dtype=None, copy=None):
        self.now[0] = max(self.now[0], self.end_secs)
        return np.zeros(1, dtype)


@pytest.mark.parametrize("resumed", [0, 95, 98, 99])
def test_the_first_line_of_a_resumed_run_has_the_pace_of_its_steps(now, monkeypatch, resumed):
    monkeypatch.setattr(metrics, "flat", lambda sums: {"skipped": 0.0})
    monkeypatch.setattr(metrics, "add", lambda total, numbers: {})
    monkeypatch.setattr(metrics, "read", lambda total: {"loss": 1.0})
    phase = Phase(seq_len=16, steps=1000, batch_size=BATCH)
    config = Config(phases=(phase,), log_every_steps=10)
    lines, left = {}, []
    screen = SimpleNamespace(
        training_line=lambda step, total, line, secs: left.append((step, secs)),
        expected_end=lambda secs: None,
        input_bound=lambda share, advice: None,
    )
    progress = Progress()
    readings = Readings(
        SimpleNamespace(config=config, screen=screen, feed=SimpleNamespace(advice=lambda: "")),
        SimpleNamespace(write=lambda step, split, line: lines.update({step: line})),
        SimpleNamespace(good=lambda: None),
        SimpleNamespace(goodput=1.0, write=lambda: None),
        progress,
    )
    timer = Clock(progress, BATCH, 1.0)
    facts = SimpleNamespace(examples_per_row=1.0)
    running = RunningPhase(0, phase, facts, 0, timer)
    ends = {resumed + 1: now[0]}
    readings.add(resumed + 1, {"x": Leaf(now, now[0])})  # the step that was compiled for
    timer.start()
    for step in range(resumed + 2, resumed + 40):
        now[0] = max(now[0], ends.get(step - 2, 0.0)) + 0.001  # room for one more, as in the loop
        ends[step] = max(now[0], ends[step - 1]) + STEP_SECS
        readings.add(step, {"x": Leaf(now, ends[step])})
        timer.step()
        if (step - 1) % config.log_every_steps == 0:
            readings.read(running, step - 1)
    paces = {step: line.get("sequences_per_sec") for step, line in lines.items()}
    assert len(paces) == 3 + (resumed > 0)
    first, *others = paces.values()
    if resumed == 99:  # its line is of the step that was compiled for
        assert first is None
    else:
        others.append(first)
    assert others == pytest.approx([BATCH / STEP_SECS] * len(others), rel=0.05)
    secs = [secs - (1000 - step) * STEP_SECS for step, secs in left if secs is not None]
    assert secs == pytest.approx([0.0] * len(secs), abs=100.0)
