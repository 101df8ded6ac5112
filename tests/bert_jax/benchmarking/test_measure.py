"""How steps are counted, grouped and timed, on a clock of the test's own; what does not fit.

Which phase is timed, with how many rows, and the refusal of rows that do not divide.
"""

import dataclasses
import types

import jax
import numpy as np
import pytest

from bert_jax.benchmarking import measure as timing
from bert_jax.benchmarking.measure import Length, Program, Spread, choose_phase, measure, set_rows
from bert_jax.config import (
    ComputeConfig,
    Config,
    DistillConfig,
    MeshConfig,
    Phase,
    validate,
)
from bert_jax.model import bert
from bert_jax.parallel import mesh
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax import tiny_models

NO_PAIRS = PretrainOptions(segments="doc_sentences")


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
        mesh=mesh.make_mesh(MeshConfig(), jax.devices()[:1]),
        first_state=lambda: "a state",
        take=take,
        compile_secs=0.0,
        memory_bytes=7,
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
    # A CPU does not count its memory.
    assert (timed.peak_memory_bytes, timed.peak_memory_by) == (7, "compiler")


def test_each_process_takes_the_steps_that_the_clock_of_process_0_has_room_for(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(timing.processes, "ask_first", lambda name, ask, limit_secs: "0.5")
    measure(program(clock.take), [{"secs": np.array([1.0])}], Length(steps=0, secs=10.0))
    assert len(clock.given) == 3 + 20


@pytest.mark.parametrize(
    ("length", "step_secs", "expected"),
    [
        (Length(steps=1, secs=9.0), 0.1, (1, 1)),
        (Length(steps=7, secs=9.0), 0.1, (7, 1)),
        (Length(steps=39, secs=9.0), 0.1, (19, 2)),  # not half of them
        (Length(steps=100, secs=9.0), 50.0, (20, 5)),
        (Length(steps=0, secs=10.0), 0.01, (20, 50)),
        (Length(steps=0, secs=10.0), 1.0, (10, 1)),
        (Length(steps=0, secs=10.0), 60.0, (5, 1)),  # five steps at least
    ],
)
def test_a_measurement_is_as_long_as_asked_for(length, step_secs, expected):
    assert length.groups(step_secs) == expected


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


def fake_compiler(monkeypatch, temporary_bytes: int) -> None:
    """Make compiling instant, to a step that needs so much memory."""
    sizes = {"argument": 50, "output": 40, "alias": 30, "temp": temporary_bytes}
    used = types.SimpleNamespace(**{f"{k}_size_in_bytes": size for k, size in sizes.items()})
    compiled = types.SimpleNamespace(memory_analysis=lambda: used)
    lowered = types.SimpleNamespace(compile=lambda: compiled)
    monkeypatch.setattr(timing, "lower_step", lambda *_: lowered)


def test_the_program_computes_as_the_config_says(monkeypatch):
    fake_compiler(monkeypatch, 7)
    config = dataclasses.replace(
        tiny_models.CONFIG, compute=ComputeConfig(remat="layer", gelu_backward="saved")
    )
    made = timing.compile_step(config, jax.devices()[:1])
    expected = bert.build(config.model, "cpu", 1, config.compute)
    assert made.model.graphdef == expected.graphdef != bert.build(config.model, "cpu").graphdef
    assert made.memory_bytes == 50 + 40 - 30 + 7


def test_a_process_asks_its_own_devices_for_their_memory(monkeypatch):
    fake_compiler(monkeypatch, 7)
    asked = []
    monkeypatch.setattr(timing, "_device_memory_bytes", asked.append)
    timing.compile_step(tiny_models.CONFIG, jax.devices()[3:4])
    assert asked == jax.devices()[3:4]


def test_a_step_larger_than_a_device_is_refused_before_it_runs(monkeypatch):
    fake_compiler(monkeypatch, 10**15)
    with pytest.raises(MemoryError, match=r"16 rows of 19 needs 1,?000,?000\.0 GB .* cpu has"):
        timing.compile_step(tiny_models.CONFIG, jax.devices()[:1])


@pytest.mark.long
def test_a_step_with_a_teacher_is_taken_and_its_memory_counts():
    alone = dataclasses.replace(tiny_models.SMALL, objective="mlm", data=NO_PAIRS)
    taught = dataclasses.replace(
        alone,
        objective="relation_distillation",
        teacher="hf:DIR",
        distill=DistillConfig(relation_heads=8),
    )
    wide = dataclasses.replace(alone.model, hidden_size=48, num_attention_heads=6)
    programs = [
        timing.compile_step(config, jax.devices()[:1], teacher)
        for config, teacher in ((alone, None), (taught, wide))
    ]
    timed = measure(programs[1], [tiny_models.random_batch()], Length(3, 1.0))
    assert len(timed.group_step_secs) == 3
    (frozen,) = programs[1].first_frozen()
    weights = 4 * sum(leaf.size for leaf in jax.tree.leaves(frozen))
    assert frozen.keys() == {"embeddings", "layers"}
    assert programs[1].memory_bytes - programs[0].memory_bytes > weights > 0


CONFIG = Config(
    phases=(
        Phase(128, 900, batch_size=256, micro_batches=4),
        Phase(512, 100, batch_size=64, max_predictions_per_seq=77, restart_learning_rate=1e-4),
    )
)


def test_a_phase_is_chosen_by_its_length_and_made_where_there_is_none():
    assert choose_phase(CONFIG, 0) == CONFIG.phases[0]
    assert choose_phase(CONFIG, 512) == CONFIG.phases[1]
    made = choose_phase(CONFIG, 256)
    assert (made.seq_len, made.max_predictions_per_seq, made.batch_size) == (256, 0, 256)
    later = dataclasses.replace(CONFIG.phases[1], restart_decay="constant")
    validate.check(set_rows(CONFIG, later, 128))  # a later phase can be


@pytest.mark.parametrize(
    ("platform", "rows", "shards", "expected"),
    [
        ("tpu", 0, 8, (256, 4)),  # the recipe's
        ("cpu", 0, 2, (32, 1)),
        ("gpu", 0, 2, (128, 1)),
        ("cpu", 24, 2, (24, 4)),
        ("tpu", 24, 2, (24, 4)),
    ],
)
def test_rows_are_those_asked_for_or_suit_the_platform(
    platform, rows, shards, expected, monkeypatch
):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "device_count", lambda: shards)
    (timed,) = set_rows(CONFIG, CONFIG.phases[0], rows).phases
    assert (timed.batch_size, timed.micro_batches) == expected


def test_rows_that_do_not_divide_are_refused_with_those_that_do(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    with pytest.raises(ValueError, match=r"is 250, not a multiple of 32 .* x 4 .*try 224 or 256$"):
        set_rows(CONFIG, CONFIG.phases[0], 250)
    with pytest.raises(ValueError, match=r"is 3, not a multiple of 8 .*try 8$"):
        set_rows(CONFIG, CONFIG.phases[1], 3)


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_memory_of_a_container_ends_at_its_limit(tmp_path, name):
    host_bytes = timing.count_host_bytes(tmp_path)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    for text, expected in (("max\n", host_bytes), ("9223372036854771712", host_bytes), ("7", 7)):
        file.write_text(text)
        assert timing.count_host_bytes(tmp_path) == expected
