"""What the host does beside the steps: it waits for no result within an interval, and the rest."""

import contextlib
import dataclasses
import io
import json
import pathlib
import threading

import jax
import pytest
from jax._src.array import ArrayImpl

from bert_jax.config import CheckpointConfig, EvalConfig, OptimConfig, Phase
from bert_jax.runtime.profiler import Window
from bert_jax.trainer import compile, loop, prefetch, readings
from bert_jax.trainer.feed import StoreFeed
from tests.bert_jax.small_runs import compiled_programs_kept_in, prepare, small_config

pytestmark = pytest.mark.slow

BEFORE_END = 12  # the last step of the first phase after which nothing is read or saved


@pytest.fixture(scope="module")
def config(tiny_store):
    phase = Phase(seq_len=16, steps=13, batch_size=8, max_predictions_per_seq=3)
    return small_config(
        tiny_store,
        phases=(phase, dataclasses.replace(phase, seq_len=24, steps=7)),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=2),
        eval=EvalConfig(every_steps=100, examples=8),
        checkpoint=CheckpointConfig(every_steps=100),
        log_every_steps=4,
    )


class Waits:
    """Calls that wait for the device or copy from it, as (name, whether of the main thread).

    What a device_get does inside is not listed again.
    """

    def __init__(self, monkeypatch):
        self.calls, self._inside = [], threading.local()
        for name in ("device_get", "block_until_ready"):
            monkeypatch.setattr(jax, name, self._noting(name, getattr(jax, name)))
        block = self._noting("block_until_ready", ArrayImpl.block_until_ready)
        monkeypatch.setattr(ArrayImpl, "block_until_ready", block)
        # float(), int(), bool(), print and NumPy all come by here.
        value = property(self._noting("value", ArrayImpl._value.fget))
        monkeypatch.setattr(ArrayImpl, "_value", value)

    def _noting(self, name, function):
        def noted(*args, **kwargs):
            if getattr(self._inside, "one", False):
                return function(*args, **kwargs)
            self.calls.append((name, threading.current_thread() is threading.main_thread()))
            self._inside.one = True
            try:
                return function(*args, **kwargs)
            finally:
                self._inside.one = False

        return noted

    def since_last(self):
        calls, self.calls = self.calls, []
        return calls


@dataclasses.dataclass
class Seen:
    """What was seen of a run of two phases: the second one's batches come late."""

    workdir: pathlib.Path
    waits: dict = dataclasses.field(default_factory=dict)  # step -> calls since the step before
    compiled: list = dataclasses.field(default_factory=list)  # (phase, whether by the main thread)
    out: str = ""
    summary: dict = dataclasses.field(default_factory=dict)


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    seen = Seen(tmp_path_factory.mktemp("host_side"))
    after_step, begin = loop.TrainingRun._after_step, compile.Programs.begin
    compile_step, train_batches = compile.Programs._compile_step, StoreFeed.train_batches

    def noted_step(self):
        after_step(self)
        seen.waits[self.step] = waits.since_last()

    def noted_compile(self, index, shape):
        compile_step(self, index, shape)
        seen.compiled.append((index, threading.current_thread() is threading.main_thread()))

    def begin_and_wait(self, index):
        begin(self, index)
        if index in self._ahead:
            self._ahead[index].result()

    def noted_take(self, batches):
        asked.append(self.step + 1)
        take(self, batches)

    def noted_end(sums):
        secs = end_secs(sums)
        ended.append(secs)
        return secs

    def late_in_phase_1(self, index, first_step, rows):
        """Each batch some time after its step was asked for and the step before has ended."""
        for step, batch in enumerate(train_batches(self, index, first_step, rows), 1):
            while index == 1 and not (len(asked) >= 13 + step and len(ended) >= 12 + step):
                threading.Event().wait(0.002)
            threading.Event().wait(0.01 * index)
            yield batch

    asked, ended, out = [], [], io.StringIO()
    take, end_secs = loop.TrainingRun._take, prefetch._wait_for_end
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out):
        patched.setattr(loop.TrainingRun, "_after_step", noted_step)
        patched.setattr(loop.TrainingRun, "_compute_scores", lambda self, index: {"mlm_loss": 1.0})
        patched.setattr(compile.Programs, "_compile_step", noted_compile)
        patched.setattr(compile.Programs, "_compile_evaluation", lambda *of: None)
        patched.setattr(compile.Programs, "begin", begin_and_wait)
        patched.setattr(StoreFeed, "train_batches", late_in_phase_1)
        patched.setattr(loop.TrainingRun, "_take", noted_take)
        patched.setattr(prefetch, "_wait_for_end", noted_end)
        patched.setattr(readings, "INPUT_BOUND_SHARE", 1e-9)
        setup = prepare(config, seen.workdir, profiled=Window(16, 17))
        waits = Waits(patched)
        with compiled_programs_kept_in(seen.workdir):
            seen.summary = loop.train(setup)
    seen.out = out.getvalue()
    return seen


def shares(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["input_wait_share"] for line in lines if line["split"] == "train"}


def test_within_an_interval_nothing_waits_for_a_result_but_the_thread_that_times_steps(run):
    """And at its end the loop does once, for the step before the one just given to the device."""
    main = {step: [name for name, is_main in calls if is_main] for step, calls in run.waits.items()}
    assert {step: main[step] for step in range(2, BEFORE_END + 1) if main[step]} == {
        5: ["device_get"],
        9: ["device_get"],
    }
    assert list(shares(run.workdir)) == [4, 8, 12, 16, 20]
    calls = [call for step in range(2, BEFORE_END + 1) for call in run.waits[step]]
    others = [name for name, is_main in calls if not is_main]
    assert set(others) == {"block_until_ready"}
    assert len(others) <= BEFORE_END


def test_the_next_phase_runs_what_was_compiled_ahead(run):
    assert run.compiled == [(0, True), (1, False)]  # each once, the second in the background
    assert run.summary["steps"] == 20
    assert "phase 0: compiling the step" in run.out
    assert "phase 1: rows of 24; the step is already compiled" in run.out


def test_a_second_start_finds_what_the_first_one_compiled(run, config):
    events = []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    with compiled_programs_kept_in(run.workdir):
        setup = prepare(config, run.workdir)
        of_phase_1 = compile.Programs(setup.parts, setup.feed, setup.phases)
        of_phase_1.compile_steps(1, first_step=0)
    assert "/jax/compilation_cache/cache_hits" in events
    assert "/jax/compilation_cache/cache_misses" not in events
    take_step = of_phase_1.step(
        1, setup.feed.open_source(1).rows(setup.feed.locate_step(14).positions_B)
    )
    assert take_step.memory_analysis() is not None
    assert f"compiled programs are kept in {run.workdir / 'compiled'}" in run.out


def test_late_batches_are_said_once_and_recorded(run):
    of_phase_1 = [share for step, share in shares(run.workdir).items() if step > 13]
    assert all(0.0 < share <= 1.0 for share in of_phase_1)
    assert 0.0 < run.summary["input_wait_share"] <= 1.0
    assert run.out.count("the input pipeline is the bottleneck") == 1
    assert "-m data_pipeline.benchmark " in run.out


def test_a_profile_of_some_steps_is_written_and_its_place_is_said(run, config):
    (trace,) = (run.workdir / "profile").rglob("*.trace.json.gz")
    assert f"profile: {trace}" in run.out
    assert "https://ui.perfetto.dev" in run.out


def test_an_error_of_a_compile_ahead_is_raised_when_the_step_is_asked_for(
    config, tmp_path, monkeypatch
):
    def failing(self, index, shape):
        raise MemoryError("exceeds available HBM")

    monkeypatch.setattr(compile.Programs, "_compile_step", failing)
    setup = prepare(config, tmp_path)
    ahead = compile.Programs(setup.parts, setup.feed, setup.phases)
    ahead.begin(1)
    ahead.begin(2)  # there is none
    with pytest.raises(MemoryError, match="exceeds available HBM"):
        ahead.compile_steps(1, first_step=0)
    assert ahead.close() is False
