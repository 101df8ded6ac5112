"""The clock of a phase, and the lines of a resumed run, with time that the test makes pass."""

from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.config import Config, Phase
from bert_jax.train_step import metrics
from bert_jax.trainer import loop, readings
from bert_jax.trainer.readings import Progress, RunningPhase, StepReader

STEP_SECS, BATCH = 2.0, 8


@pytest.fixture
def now(monkeypatch):
    """Seconds that have passed, in a list of one."""
    secs = [100.0]
    monkeypatch.setattr(readings.time, "perf_counter", lambda: secs[0])
    return secs


def clock(progress, examples_per_row=1.0):
    config = Config(phases=(Phase(16, 99, batch_size=BATCH),))
    return RunningPhase(config, 0, SimpleNamespace(examples_per_row=examples_per_row), progress)


def test_a_row_counts_as_the_examples_in_it_and_its_pace_foretells(now):
    progress = Progress()
    timer = clock(progress, examples_per_row=2.5)
    assert timer.secs_for(8) is None
    timer.count_step()
    timer.count_step()
    now[0] += 4.0
    timer.end_interval()
    assert timer.rows_per_sec == 4.0
    assert (progress.timed_sequences, progress.train_secs) == (40.0, 4.0)
    assert timer.secs_for(24) == 6.0


def test_nothing_is_measured_before_a_step_or_since_a_new_start(now):
    progress = Progress(train_secs=7.0, timed_sequences=3.0)
    timer = clock(progress)
    now[0] += 60.0
    timer.end_interval()
    timer.count_step()
    timer.restart_clock()  # after an evaluation, say
    now[0] += 1.0
    timer.end_interval()
    assert timer.rows_per_sec is None
    assert progress == Progress(train_secs=7.0, timed_sequences=3.0)


def test_waits_for_batches_are_a_share_of_the_interval_and_of_the_run(now):
    progress = Progress(train_secs=6.0, input_wait_secs=1.0)
    timer = clock(progress)
    timer.add_wait(0.5)
    timer.count_step()
    timer.add_wait(0.25)
    now[0] += 3.0
    timer.end_interval()
    assert timer.input_wait_share == 0.25
    timer.count_step()
    timer.add_wait(5.0)  # most of it in the interval before
    now[0] += 1.0
    timer.end_interval()
    assert timer.input_wait_share == 1.0
    assert (progress.train_secs, progress.input_wait_secs) == (10.0, 6.75)


def test_steps_under_way_count_once_they_have_ended(now):
    progress = Progress()
    timer = clock(progress)
    timer.count_step()
    now[0] += 0.01  # the step takes two seconds
    timer.end_interval(steps_under_way=1)
    assert timer.rows_per_sec is None
    for _ in range(3):
        timer.count_step()
        now[0] += 2.0
    now[0] -= 0.01
    timer.end_interval(steps_under_way=1)
    assert timer.rows_per_sec == pytest.approx(4.0)
    now[0] += 2.0
    timer.end_interval()
    assert timer.rows_per_sec == pytest.approx(4.0)
    assert (progress.timed_sequences, progress.train_secs) == (32.0, pytest.approx(8.0))


class Leaf:
    """What a step returns: at hand once the step has ended."""

    def __init__(self, now, end_secs):
        self.now, self.end_secs = now, end_secs

    def copy_to_host_async(self):
        pass

    def __array__(self, dtype=None, copy=None):
        self.now[0] = max(self.now[0], self.end_secs)
        return np.zeros(1, dtype)


def reader(config, screen, record):
    setup = SimpleNamespace(config=config, screen=screen, input_advice="")
    return StepReader(setup, record, None, SimpleNamespace(goodput=1.0, write=print), Progress())


@pytest.mark.parametrize("resumed", [0, 95, 98, 99])
def test_the_first_line_of_a_resumed_run_has_the_pace_of_its_steps(now, monkeypatch, resumed):
    monkeypatch.setattr(metrics, "flatten", lambda sums: {"skipped": 0.0})
    monkeypatch.setattr(metrics, "add_step", lambda total, numbers: {})
    monkeypatch.setattr(metrics, "compute_means", lambda total: {"loss": 1.0})
    phase = Phase(seq_len=16, steps=1000, batch_size=BATCH)
    config = Config(phases=(phase,), log_every_steps=10)
    lines, left = {}, []
    screen = SimpleNamespace(
        training_line=lambda step, total, line, secs: left.append((step, secs)),
        expected_end=lambda secs: None,
        input_bound=lambda share, advice: None,
    )
    readings = reader(config, screen, lambda step, split, line: lines.update({step: line}))
    facts = SimpleNamespace(examples_per_row=1.0)
    running = RunningPhase(config, 0, facts, readings._progress)
    ends = {resumed + 1: now[0]}
    readings.add(resumed + 1, {"x": Leaf(now, now[0])})  # the step that was compiled for
    running.restart_clock()
    for step in range(resumed + 2, resumed + 40):
        now[0] = max(now[0], ends.get(step - 2, 0.0)) + 0.001  # room for one more, as in the loop
        ends[step] = max(now[0], ends[step - 1]) + STEP_SECS
        readings.add(step, {"x": Leaf(now, ends[step])})
        running.count_step()
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


def test_a_line_has_examples_a_second_and_the_seconds_of_all_positions_that_are_left(now):
    """Rows hold 2.5 examples; 4 rows of 16 a second are 64 positions a second."""
    phases = (Phase(16, 10, batch_size=8), Phase(32, 4, batch_size=8))
    lines, shown = [], []
    screen = SimpleNamespace(
        training_line=lambda step, total, line, secs_left: shown.append((step, total, secs_left)),
        expected_end=lambda secs: None,
        input_bound=lambda share, advice: shown.append(share),
    )
    config = Config(phases=phases, log_every_steps=2)
    read = reader(config, screen, lambda *line: lines.append(line))
    running = RunningPhase(config, 0, SimpleNamespace(examples_per_row=2.5), Progress())
    running.count_step()
    now[0] += 2.0
    running.end_interval()
    read._progress.interval = {"mlm/loss_sum": 6.0, "mlm/weight": 3.0, "steps": 1.0}
    read._record_interval(running, 2)
    ((step, split, line),) = lines
    assert (step, split, line["loss"]) == (2, "train", 2.0)
    assert (line["sequences_per_sec"], line["input_wait_share"]) == (10.0, 0.0)
    assert shown == [(2, 14, (8 * 8 * 16 + 4 * 8 * 32) / 64)]
    assert read._progress.interval == {}


def test_the_watch_of_a_run_knows_what_each_of_its_phases_is_like(tmp_path):
    phases = (Phase(16, 10, batch_size=8), Phase(32, 4, batch_size=8))
    facts = [
        SimpleNamespace(baseline={"unigram_mlm_loss": number}, per_step={"seq_len": 16 * number})
        for number in (1.0, 2.0)
    ]
    screen = SimpleNamespace(finding=print)
    config = Config(phases=phases)
    setup = SimpleNamespace(
        config=config, phases=facts, screen=screen, findings=["x"], workdir=tmp_path
    )
    _, watch, _ = loop.open_listeners(setup)
    assert watch.baselines == [{"unigram_mlm_loss": 1.0}, {"unigram_mlm_loss": 2.0}]
    assert watch.per_step == [{"seq_len": 16.0}, {"seq_len": 32.0}]
    assert (watch.config, watch.data_findings, watch.show) == (config, ["x"], print)
