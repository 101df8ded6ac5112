"""Run the training loop: phases of steps, evaluation, saving, roll-backs and an orderly stop.

Batches are placed on the devices in advance, steps are dispatched ahead of time, and their results
are read one step late, so the loop never waits for the newest step. `Progress` holds the counters
that must survive a restart.

Read train, open_run, TrainingRun.train_phase and TrainingRun._take, which calls the compiled step:
lower_step in trainer/compile.py makes it from train_step/step.py.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax.checkpoint.directory import NoIntactCheckpoint
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import RunConfig
from bert_jax.logging.console import FAINT, StepLine
from bert_jax.logging.metrics_writer import SUMMARY, EventsFile, Listener, MetricsFile, WandbWriter
from bert_jax.monitoring.watch import Watch
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import goodput, profiler
from bert_jax.runtime.goodput import Ledger
from bert_jax.runtime.preemption import Interrupted, Stop
from bert_jax.runtime.profiler import Profiler
from bert_jax.runtime.watchdog import Watchdog, Work
from bert_jax.train_step import guard
from bert_jax.train_step.schedule import make_pace_of
from bert_jax.train_step.state import TrainState
from bert_jax.trainer.bad_steps import BadSteps, RollBack
from bert_jax.trainer.compile import Programs
from bert_jax.trainer.data_check import DataCheck, describe_damage
from bert_jax.trainer.prefetch import PlacedBatch, StepsInFlight, place_ahead
from bert_jax.trainer.readings import Progress, RunningPhase, StepReader
from bert_jax.trainer.setup import (
    RunStart,
    Setup,
    claim_workdir,
    open_checkpoints,
    restore_or_initialize,
)
from bert_jax.trainer.summary import list_opening_rows
from data_pipeline.io import Refused

COMPILE_AHEAD_SECS = 900.0  # time before the end of a phase when the next one starts compiling


def train(setup: Setup, watchdog: Watchdog | None = None) -> dict[str, Any]:
    """Train from the newest checkpoint, or step 0, to the last step; return the summary.

    Raises FloatingPointError if the guard against bad steps stopped the run, and Interrupted if a
    process received a stop signal: the run is then saved and can be resumed.
    """
    stop = Stop()
    watchdog = watchdog or Watchdog()
    with stop.noted(), setup.screen.spinning("starting the run"):
        try:
            return _train_phases(setup, stop, watchdog)
        except NoIntactCheckpoint:
            if not setup.config.checkpoint.fresh:
                raise
        # The records of the lost run are moved to before-fresh-N/.
        return _train_phases(claim_workdir(RunStart(begins_anew=True), setup), stop, watchdog)


def _train_phases(setup: Setup, stop: Stop, watchdog: Watchdog) -> dict[str, Any]:
    with open_run(setup, stop, watchdog) as run:
        while not run.is_done:
            try:
                run.train_phase()
            except RollBack as bad:
                run.roll_back(bad)
        return run.finish()


@contextlib.contextmanager
def open_run(setup: Setup, stop: Stop, watchdog: Watchdog) -> Iterator["TrainingRun"]:
    """Restore or initialize the state, and open all that the run needs; close it at the end."""
    ledger = Ledger(setup.workdir, setup.began, jax.process_index() == 0)
    checkpoints = open_checkpoints(setup, watchdog.report)
    work = Work(watchdog, ledger, setup.config.hosts, setup.screen)
    with contextlib.ExitStack() as at_the_end:
        at_the_end.enter_context(ledger)
        last_save = work.doing(goodput.SAVING, "finishing the last save")
        at_the_end.enter_context(checkpoints.closed_after(last_save))
        at_the_end.enter_context(watchdog.reporting())  # closed before the wait for the last save
        is_new = checkpoints.latest_step is None
        if is_new:
            _show_opening(setup, ledger, done=None)
        state, progress = _restore_or_initialize(setup, checkpoints, work)
        if not is_new:  # the restore has found which checkpoint is complete
            _show_opening(setup, ledger, done=int(state.step))
        data_check = DataCheck(setup.stores, setup.workdir, stop, setup.config.hosts.stuck_secs)
        at_the_end.callback(data_check.close)
        run = TrainingRun(setup, stop, work, checkpoints, data_check, int(state.step))
        at_the_end.callback(run.close)
        run.start(state, progress)
        yield run


def open_listeners(setup: Setup) -> list[Listener]:
    """Open the listeners on process 0 (record files, monitoring, W&B); return none elsewhere."""
    if jax.process_index() > 0:
        return []
    config, screen = setup.config, setup.screen
    file = MetricsFile(setup.workdir, config_lib.total_steps(config))
    listeners: list[Listener] = [file]
    if isinstance(config, config_lib.Config):  # the rules are for pre-training alone
        baselines = [facts.baseline for facts in setup.phases]
        per_step = [facts.per_step for facts in setup.phases]
        watch = Watch(config, baselines, per_step, setup.findings, screen.finding, file)
        listeners.append(watch)
    listeners.append(EventsFile(setup.workdir))
    if config.log.wandb:
        listeners.append(WandbWriter(setup.workdir, config, screen.print))
    return listeners


def _restore_or_initialize(
    setup: Setup, checkpoints: Checkpoints, work: Work
) -> tuple[TrainState, Progress]:
    kind, words = goodput.STARTING, "initializing the weights, and saving them"
    if checkpoints.latest_step is not None:
        kind, words = goodput.RESTORING, f"restoring step {checkpoints.latest_step:,}"
    with work.doing(kind, words):
        state, progress = restore_or_initialize(setup, checkpoints)
        # On CPUs with several processes, weights are exchanged in the threads that compiling needs:
        # finish the exchange first, or a process that compiles early deadlocks.
        jax.block_until_ready(state)
    step = int(state.step)
    is_at_end = step == config_lib.total_steps(setup.config)
    work.ledger.resume_from(step, is_at_end and (setup.workdir / SUMMARY).exists())
    return state, progress


def _show_opening(setup: Setup, ledger: Ledger, done: int | None) -> None:
    """Print the first block; `done` is the step of the restored checkpoint, None if new."""
    rows = list_opening_rows(setup, done)
    rows += [*setup.storage.rows(), *ledger.opening_rows()]
    setup.screen.table(f"{setup.feed.provenance.learns} in {setup.storage.address}", rows)


def _keep_finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """Leave out NaN and infinities, which JSON does not have."""
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _describe_change(config: RunConfig, index: int) -> str:
    """Describe the changes at the start of a phase that can make the loss jump; "" if none."""
    phase, before = config.phases[index], config.phases[max(0, index - 1)]
    news = []
    if phase.seq_len != before.seq_len:
        news.append(f"rows of {phase.seq_len:,}")
    if index and phase.restart_learning_rate:
        news.append(f"learning rate restarts at {phase.restart_learning_rate:g}")
    sizes = [
        config_lib.model_in_phase(config, i).intermediate_size for i in (max(0, index - 1), index)
    ]
    if sizes[0] != sizes[1]:
        news.append(f"{sizes[1]:,} of {sizes[0]:,} neurons are left in each layer")
    return ", ".join(news)


class TrainingRun:
    """Own the state and the counters of a run in this process, and train it to its end."""

    def __init__(
        self,
        setup: Setup,
        stop: Stop,
        work: Work,
        checkpoints: Checkpoints,
        data_check: DataCheck,
        started_step: int,
    ) -> None:
        """Prepare to compile, and open the record files.

        Call `start` next, with the state of `started_step`.
        """
        self.setup, self.stop, self.work = setup, stop, work
        self.checkpoints, self.data_check = checkpoints, data_check
        self.started_step = started_step
        self.config, self.screen, self.ledger = setup.config, setup.screen, work.ledger
        self.bad_steps = BadSteps(setup.storage, self.config, setup.feed, self.screen)
        self.programs = Programs(setup.parts, setup.feed, setup.phases)
        self.pace_of = make_pace_of(self.config)
        self.listeners = open_listeners(setup)
        self.summary: dict[str, Any] | None = None
        self._has_state = False

    def start(self, state: TrainState, progress: Progress) -> None:
        """Begin at a restored or initial state, past the steps that earlier roll-backs left out.

        Called again after a roll-back.
        """
        for listener in self.listeners:
            listener.on_start(int(state.step))
        self.state = self.bad_steps.resume(state, progress, self.setup.parts.shardings)
        self._has_state = True
        self.progress, self.step = progress, int(self.state.step)
        self.index = 0  # the phase to train next
        self.heldout: dict[str, float] = {}  # the scores of the last evaluation
        self.in_flight = StepsInFlight()
        setup = self.setup
        self.readings = StepReader(setup, self._record, self.bad_steps, self.ledger, progress)
        window = setup.profiled if jax.process_index() == 0 else None
        self.profiler = Profiler(window, setup.workdir / profiler.FOLDER)
        self.step_line = StepLine(self.screen, config_lib.total_steps(self.config))

    @property
    def is_done(self) -> bool:
        """Return whether all phases are trained."""
        return self.index == len(self.config.phases)

    def train_phase(self) -> None:
        """Train the remaining steps of the next phase."""
        index, facts = self.index, self.setup.phases[self.index]
        wait = self.ledger.move_to_waiting
        running = RunningPhase(self.config, index, facts, self.progress, wait)
        self.running = running
        if self.setup.resize is not None and running.start <= self.step <= running.end:
            with self.work.doing(goodput.COMPILING, f"phase {index}: removing neurons"):
                self.state = self.setup.resize(self.state, index)
        if running.start < self.step <= running.end:
            self.readings.record_ended(running, self.step)
            if self._owes_evaluation():
                self._evaluate()  # postponed by a stop, a roll-back or the end of a trunk
        if self.step < running.end:
            with self.ledger.spent(goodput.TRAINING), self._batches() as batches:
                self._take_steps(batches)
        elif self.step == running.end and self.checkpoints.latest_step != self.step:
            self._save()
        self.index += 1

    def roll_back(self, bad: RollBack) -> None:
        """Restore the newest checkpoint, and leave out the steps from there through the bad one."""
        self._free_state()
        state, progress = _restore_or_initialize(self.setup, self.checkpoints, self.work)
        self.bad_steps.leave_out(int(state.step), bad)
        self.setup.storage.publish()  # a run killed after this resumes identically
        self.start(state, progress)

    def finish(self) -> dict[str, Any]:
        """Wait for the last save and the check of the data; return the summary."""
        if not self.heldout:  # an earlier process finished and evaluated the run
            self.heldout = self._compute_scores(len(self.config.phases) - 1)
        self._await_save()
        self._refuse_damaged_data(waits=True)
        self.summary = self._summarize()
        return self.summary

    def close(self) -> None:
        """Stop the background threads and the listeners."""
        # Everything is closed, in reverse order, even if one close raises.
        with contextlib.ExitStack() as closing:
            for listener in self.listeners:
                closing.callback(listener.on_close, self.summary)
            closing.callback(self._close_programs)
            self._free_state()

    def _close_programs(self) -> None:
        if self.programs.close():
            self.screen.print("a phase is still being compiled, which cannot be interrupted")

    def _free_state(self) -> None:
        """Stop everything that uses the state, and release its device memory."""
        if self._has_state:
            self._has_state = False
            self._show_trace(self.profiler.close())
            self.in_flight.close()
            del self.state

    def _record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        for listener in self.listeners:
            listener.on_record(step, split, _keep_finite(numbers))

    def _batches(self) -> contextlib.AbstractContextManager[Iterator[PlacedBatch]]:
        """Place the batches of a phase on the devices, ahead of the steps.

        The path of a batch: data_pipeline/sampling/batches.py makes NumPy rows of a store;
        train_batches (trainer/feed.py) yields them to the thread of place_ahead (prefetch.py);
        place_batch_rows (parallel/mesh.py) puts this process's rows on its devices; _take passes
        them to the step.
        """
        running, mesh = self.running, self.setup.parts.mesh
        batch_size = running.phase.batch_size
        rows = mesh_lib.process_rows(batch_size, mesh)
        source = self.setup.feed.train_batches(running.index, self.step - running.start, rows)
        return place_ahead(
            source, lambda batch: mesh_lib.place_batch_rows(batch, mesh, batch_size, rows)
        )

    def _take_steps(self, batches: Iterator[PlacedBatch]) -> None:
        running = self.running
        self._stop_if_asked()
        self._compile_steps()
        self._stop_if_asked()
        words = f"phase {running.index}: taking the first step"
        # Wait until the other processes have compiled the step as well.
        with self.work.doing(goodput.TRAINING, words):
            self._take(batches)
            self.ledger.move_to_waiting(self.in_flight.wait_for_all())
        self._restart_clock()  # training time begins here
        self._after_step()
        while self.step < running.end:
            with self.work.step(self.step + 1):
                running.add_wait(self.in_flight.make_room())
                self._take(batches)
            running.count_step()
            self._show_step()
            self._after_step()

    def _compile_steps(self) -> None:
        index, first_step = self.running.index, self.step - self.running.start
        words = f"phase {index}: compiling the step"
        news = _describe_change(self.config, index) if first_step == 0 else ""
        if self.programs.is_ready(index):
            news += "; " * bool(news)
            self.screen.print(f"phase {index}: {news}the step is already compiled", FAINT)
            self.programs.compile_steps(index, first_step)
            return
        if news:
            self.screen.print(f"phase {index}: {news}", FAINT)
        self.screen.print_without_line(words)
        with self.work.doing(goodput.COMPILING, words) as show:
            self.programs.compile_steps(index, first_step, lambda shape: show(words + shape))

    def _take(self, batches: Iterator[PlacedBatch]) -> None:
        asked_secs = time.perf_counter()
        batch = next(batches)
        got_secs = time.perf_counter()
        take_step = self.programs.step(self.running.index, batch)
        self.profiler.before(self.step + 1, self.state)
        with jax.profiler.StepTraceAnnotation("step", step_num=self.step + 1):
            pace = self.pace_of(self.step)
            self.state, sums = take_step(self.state, batch, pace, *self.setup.frozen)
        self.step = self.ledger.step = self.step + 1
        self.in_flight.add(sums, asked_secs, got_secs)
        self.readings.add(self.step, sums)

    def _show_step(self) -> None:
        running, ended = self.running, self.step - self.in_flight.count
        phase, positions = running.phase, self.readings.positions_left(running, ended)
        examples = phase.batch_size * running.facts.examples_per_row
        self.step_line.show(ended, examples, positions / (phase.batch_size * phase.seq_len))

    def _show_trace(self, trace: str | None) -> None:
        if trace is not None:
            self.screen.print(f"profile: {trace}")
            self.screen.print(profiler.HOW_TO_OPEN)

    def _after_step(self) -> None:
        """Read results, evaluate, save or stop, whatever is due after a step, in this order."""
        if self.profiler.is_last(self.step):
            self._end_trace()
        is_stopping = self.stop.is_asked()
        evaluates = not is_stopping and self._owes_evaluation()
        at_end = self.step == self.running.end
        saves = at_end or is_stopping or self.checkpoints.is_due(self.step)
        pauses = evaluates or saves
        logs = (self.step - 1) % self.config.log_every_steps == 0
        for is_due, do in (
            (is_stopping, self._refuse_damaged_data),
            (pauses, self._read_all_steps),
            (logs and not pauses, self._read_finished_steps),
            (evaluates, self._evaluate),
            (saves, self._save),
            (is_stopping, self._end_stopped),
            (pauses, self._restart_clock),
            (True, self._compile_next_phase),
        ):
            if is_due:
                do()

    def _end_trace(self) -> None:
        self.running.add_wait(self.in_flight.wait_for_all())
        self.running.end_interval()
        self._show_trace(self.profiler.close())
        self.running.restart_clock()

    def _read_all_steps(self) -> None:
        with self.work.step(self.step + 1):
            self.running.add_wait(self.in_flight.wait_for_all())
        self.readings.read(self.running, self.step)

    def _read_finished_steps(self) -> None:
        self.readings.read(self.running, self.step - 1)

    def _restart_clock(self) -> None:
        self.running.restart_clock()
        self.step_line.restart(self.step)

    def _compile_next_phase(self) -> None:
        running = self.running
        secs_left = running.secs_for((running.end - self.step) * running.phase.batch_size)
        if secs_left is not None and secs_left <= COMPILE_AHEAD_SECS:
            self.programs.begin(running.index + 1)

    def _save(self) -> None:
        with self.work.doing(goodput.SAVING, f"saving step {self.step:,}"):
            if not guard.all_finite(self.state.params):
                raise FloatingPointError(
                    f"a parameter is not finite after step {self.step}, though its loss and "
                    "gradient were; it is not saved. Lower config.optim.learning_rate "
                    f"({self.config.optim.learning_rate})"
                )
            self.ledger.write()
            self.setup.storage.publish()  # first: a run that resumes here must find its metrics
            numbers = dataclasses.asdict(self.progress)
            self.checkpoints.save(self.step, self.state, numbers, self.screen.print)

    def _stop_if_asked(self) -> None:
        """Save and raise Interrupted if a stop is due between these steps."""
        if self.stop.is_asked():
            self._refuse_damaged_data()
            if self.checkpoints.latest_step != self.step:
                self._save()
            self._end_stopped()

    def _refuse_damaged_data(self, waits: bool = False) -> None:
        """Raise Refused on every process if data are damaged; with `waits`, verify all files first.

        Before raising, quarantine the checkpoints saved since this process started.
        """
        with self.work.doing(goodput.SAVING, "verifying the store"):
            problem = self.data_check.problem(self.config.hosts.stuck_secs, waits)
            if not problem:
                return
            words = f"trained on damaged data since step {self.started_step:,}"
            moved = self.checkpoints.quarantine_after(self.started_step, words, self.screen.print)
        raise Refused(describe_damage(problem, self.started_step, self.step, *moved))

    def _end_stopped(self) -> None:
        self._await_save()
        raise Interrupted(self.stop.signal_number, self.step)

    def _await_save(self) -> None:
        words = f"saving step {self.checkpoints.latest_step}"
        with self.work.doing(goodput.SAVING, words):
            self.checkpoints.wait()

    def _owes_evaluation(self) -> bool:
        is_due = self.step == self.running.end or self.step % self.config.eval.every_steps == 0
        return is_due and self.progress.evaluated_step != self.step

    def _compute_scores(self, index: int) -> dict[str, float]:
        """Return the scores of the current parameters on a phase's held-out examples."""
        facts, results = self.setup.phases[index], []
        words = f"evaluating on {facts.heldout_examples:,} held-out examples"
        with self.work.doing(goodput.EVALUATING, words):
            with self.ledger.spent(goodput.COMPILING):
                self.programs.compile_evaluations(index)
            for batch in facts.heldout_batches:
                self._stop_if_asked()
                placed = mesh_lib.place_batch(batch, self.setup.parts.mesh)
                evaluate = self.programs.evaluation(index, placed)
                sums = evaluate(self.state.params, placed, *self.setup.frozen)
                results.append(jax.device_get(sums))
        return facts.score(results)

    def _evaluate(self) -> None:
        facts = self.running.facts
        self.heldout = self._compute_scores(self.running.index)
        self.progress.evaluated_step = self.step
        facts.show(self.screen, self.step, self.heldout)
        self._record(self.step, "heldout", self.heldout | facts.baseline)

    def _summarize(self) -> dict[str, Any]:
        train_secs = max(self.progress.train_secs, 1e-9)
        return {
            **{f"heldout_{name}": value for name, value in _keep_finite(self.heldout).items()},
            **self.setup.phases[-1].baseline,
            "sequences_per_sec": self.progress.timed_sequences / train_secs,
            "input_wait_share": self.progress.input_wait_secs / train_secs,
            "train_secs": self.progress.train_secs,
            "steps": self.step,
            "skipped_steps": self.progress.skipped_steps,
            "left_out_steps": self.progress.left_out_steps,
            "phases": [facts.per_step for facts in self.setup.phases],
            "parameters": self.setup.parts.model.parameter_count,
            **self.ledger.summary(),
        }
