"""How steps are counted, grouped and timed, on a clock of the test's own; what does not fit."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from bert_jax import mesh, timing
from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.models import bert
from bert_jax.objectives import MLM_NSP
from bert_jax.timing import Length, Program, Spread, measure
from tests.bert_jax import tiny_models


class Clock:
    """Time that passes when a step is waited for: a step takes as long as its batch says."""

    def __init__(self, monkeypatch) -> None:
        self.secs, self.waited_for, self.given = 0.0, 0, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.secs)
        monkeypatch.setattr(timing.jax, "block_until_ready", self.wait)

    def take(self, state, batch):
        # On the host: the mesh that is set may be another test's.
        self.given.append(float(np.asarray(batch["secs"])[0]))
        return state, len(self.given)

    def wait(self, steps_done) -> None:
        if isinstance(steps_done, int):
            self.secs += sum(self.given[self.waited_for : steps_done])
            self.waited_for = steps_done
            # The devices have work while the host looks at the clock, except at an end.
            self.in_hand = len(self.given) - steps_done


def program(take) -> Program:
    return Program(
        config=tiny_models.CONFIG,
        model=None,
        mesh=mesh.make(MeshConfig(), jax.devices()[:1]),
        first_state=lambda: "a state",
        take=take,
        compile_secs=0.0,
        memory_bytes=0,
    )


def test_every_group_has_the_time_of_its_own_steps(monkeypatch):
    clock = Clock(monkeypatch)
    batches = [{"secs": np.array([secs])} for secs in (1.0, 2.0, 6.0)]
    told = []
    timed = measure(program(clock.take), batches, Length(steps=80, secs=1.0), told.append)
    assert timed.first_step_secs == 1.0
    assert (timed.group_steps, len(timed.group_step_secs)) == (4, 20)
    # Three steps warm up, so that groups begin at the first batch: 1 2 6 1, 2 6 1 2, 6 1 2 6, ...
    assert timed.group_step_secs[:4] == (10 / 4, 11 / 4, 15 / 4, 10 / 4)
    assert timed.step_secs == Spread(10 / 4, 10 / 4, 11 / 4, 15 / 4, 15 / 4)
    assert len(clock.given) == 3 + 80
    assert told[-1] == "timed 80 of 80 steps"
    assert timed.peak_memory_bytes is None  # a CPU does not count it


@pytest.mark.parametrize(
    ("length", "step_secs", "expected"),
    [
        (Length(steps=1, secs=9.0), 0.1, (1, 1)),
        (Length(steps=7, secs=9.0), 0.1, (7, 1)),
        (Length(steps=100, secs=9.0), 50.0, (20, 5)),
        (Length(steps=0, secs=10.0), 0.01, (20, 50)),
        (Length(steps=0, secs=10.0), 1.0, (10, 1)),
        (Length(steps=0, secs=10.0), 60.0, (5, 1)),  # five steps at least
    ],
)
def test_a_measurement_is_as_long_as_asked_for(length, step_secs, expected):
    assert length.groups(step_secs) == expected


def test_quartiles_lie_between_two_numbers():
    assert Spread.of([4.0, 1.0, 2.0, 3.0]) == Spread(1.0, 1.75, 2.5, 3.25, 4.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0, 5.0, 5.0)


def test_a_device_out_of_memory_is_one_sentence_and_another_error_stays(monkeypatch):
    Clock(monkeypatch)

    def raising(words):
        def take(state, batch):
            raise jax.errors.JaxRuntimeError(words)

        return measure(program(take), [{"secs": np.zeros(1)}], Length(3, 1.0))

    with pytest.raises(MemoryError, match=r"16 rows of 19 does not fit .*17G.* smaller batch"):
        raising("RESOURCE_EXHAUSTED: Out of memory\nwhile trying to allocate 17G.")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        raising("INTERNAL: a link is down")


class NotCompiled:
    """A step whose compiler says how much memory it wants."""

    def __init__(self, temporary_bytes: int) -> None:
        self._temporary_bytes = temporary_bytes

    def lower(self, state, batch):
        return self

    def compile(self):
        return self

    def memory_analysis(self):
        return types.SimpleNamespace(
            argument_size_in_bytes=50,
            output_size_in_bytes=40,
            alias_size_in_bytes=30,
            temp_size_in_bytes=self._temporary_bytes,
        )


def test_the_program_computes_as_the_config_says(monkeypatch):
    monkeypatch.setattr(timing.step, "train_step", lambda *_: NotCompiled(7))
    config = dataclasses.replace(
        tiny_models.CONFIG, compute=ComputeConfig(remat="layer", gelu_backward="saved")
    )
    made = timing.compile_step(config, MLM_NSP, jax.devices()[:1])
    expected = bert.build(config.model, "cpu", 1, config.compute)
    assert made.model.graphdef == expected.graphdef != bert.build(config.model, "cpu").graphdef
    assert made.memory_bytes == 50 + 40 - 30 + 7


def test_a_step_larger_than_a_device_is_refused_before_it_runs(monkeypatch):
    monkeypatch.setattr(timing.step, "train_step", lambda *_: NotCompiled(10**15))
    with pytest.raises(MemoryError, match=r"16 rows of 19 needs 1,?000,?000\.0 GB .* cpu has"):
        timing.compile_step(tiny_models.CONFIG, MLM_NSP, jax.devices()[:1])
