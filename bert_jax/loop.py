"""The training loop: phases of steps, evaluation, saving, and an orderly stop.

Batches lie on the devices before their steps ask for them, steps are given to the devices ahead of
time, and what they return is read a step late: within an interval of the records the loop waits for
no result. All that it must remember across a restart is in `Progress`.
"""

import contextlib
import dataclasses
import time
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax import data_check, guard, left_out, profiling, wall_time
from bert_jax import mesh as mesh_lib
from bert_jax.bad_steps import BadSteps
from bert_jax.beginning import begin_anew, checkpoints_of, start
from bert_jax.checkpoint import Checkpoints
from bert_jax.checkpoint_choice import NoneIsWhole
from bert_jax.clock import Clock, Progress
from bert_jax.data_check import DataCheck
from bert_jax.exit_codes import Refused
from bert_jax.log import Records
from bert_jax.opening import opening_rows
from bert_jax.placed_batches import HostBatch, PlacedBatch, PlacedBatches
from bert_jax.preparation import Setup
from bert_jax.profiling import Profiler
from bert_jax.programs import Programs
from bert_jax.readings import Readings, RunningPhase
from bert_jax.screen import FAINT
from bert_jax.state import TrainState
from bert_jax.step_line import StepLine
from bert_jax.steps_in_flight import StepsInFlight
from bert_jax.stopping import Interrupted, Stop
from bert_jax.wall_time import Ledger
from bert_jax.wandb_writer import WandbWriter
from bert_jax.watchdog import Watchdog
from bert_jax.work import Work

COMPILE_AHEAD_SECS = 900.0  # before a phase ends, the next one is compiled beside it


def train(setup: Setup, watchdog: Watchdog | None = None) -> dict[str, Any]:
    """Train from the newest checkpoint in the workdir, or from scratch, to the end; summarise.

    Raises:
      FloatingPointError: the guard of bad numbers stopped the run.
      Interrupted: a process was told to stop; the run is saved and goes on when started again.
    """
    stop = Stop()
    watchdog = watchdog or Watchdog()
    with stop.noted(), setup.screen.spinning("starting the run"):
        try:
            return _train(setup, stop, watchdog)
        except NoneIsWhole:
            if not setup.config.checkpoint.fresh:
                raise
        return _train(begin_anew(setup), stop, watchdog)


def _train(setup: Setup, stop: Stop, watchdog: Watchdog) -> dict[str, Any]:
    """Train until there is a reason to stop, which may come at any time."""
    config = setup.config
    checkpoints = checkpoints_of(setup)
    ledger = Ledger(setup.workdir, setup.began, jax.process_index() == 0)
    work = Work(watchdog, ledger, config.hosts, setup.screen)
    summary = None

    def begin() -> tuple[TrainState, Progress]:
        kind, what = wall_time.STARTING, "drawing the initial weights, and saving them"
        if checkpoints.latest_step is not None:
            kind, what = wall_time.RESTORING, f"restoring step {checkpoints.latest_step:,}"
        with work.doing(kind, what):
            state, progress = start(setup, checkpoints)
            # Several processes on CPUs exchange weights in the threads that compiling needs too:
            # one that compiles while another still waits for its part would wait for ever.
            jax.block_until_ready(state)
        ledger.goes_on_from(int(state.step))
        return state, progress

    with contextlib.ExitStack() as at_the_end:
        at_the_end.enter_context(ledger)
        last_save = work.doing(wall_time.SAVING, "finishing the last save")
        at_the_end.enter_context(checkpoints.closed_after(last_save))

        def show_block(done: int | None) -> None:
            of = setup.mesh, setup.model, setup.data_rows, done
            block = opening_rows(config, *of, setup.profiled, setup.changes)
            block += [*setup.storage.rows(), *ledger.opening_rows()]
            setup.screen.table(f"{setup.feed.learns} in {setup.storage.address}", block)

        # Which checkpoint is whole, and so the step, is known once it has been restored.
        resumes = checkpoints.latest_step is not None
        if not resumes:
            show_block(None)
        state, progress = begin()
        if resumes:
            show_block(int(state.step))
        check = DataCheck(setup.store, setup.workdir, stop)
        at_the_end.callback(check.close)
        started_step = int(state.step)
        is_writer = jax.process_index() == 0
        wandb = None
        if config.log.wandb and is_writer:
            wandb = WandbWriter(setup.workdir, config, setup.screen.say)
        records = Records(setup.workdir, int(state.step), is_writer, wandb)
        programs = Programs(setup)

        def run_from(state: TrainState, progress: Progress, bad_steps: BadSteps) -> dict[str, Any]:
            run = _Run(
                setup, checkpoints, records, programs, bad_steps, state, progress, stop, work
            )
            run.data_check, run.started_step = check, started_step
            with contextlib.closing(run):
                return run.all_phases()

        try:
            summary = left_out.to_the_end(setup, records, run_from, begin, state, progress)
        finally:
            if programs.close():
                setup.screen.say("a phase is still being compiled, which ends by itself alone")
            records.close(summary)
    return summary


class _Run:
    """A run under way: the state that steps hand on, and all that works beside them."""

    def __init__(
        self,
        setup: Setup,
        checkpoints: Checkpoints,
        records: Records,
        programs: Programs,
        bad_steps: BadSteps,
        state: TrainState,
        progress: Progress,
        stop: Stop,
        work: Work,
    ) -> None:
        self.setup, self.config, self.screen = setup, setup.config, setup.screen
        self.checkpoints, self.records, self.programs = checkpoints, records, programs
        self.state, self.progress = state, progress
        self.step = int(state.step)
        self.in_flight = StepsInFlight()
        self.bad_steps = bad_steps
        self.readings = Readings(setup, records, bad_steps, work.ledger, progress)
        window = setup.profiled if jax.process_index() == 0 else None
        self.profiler = Profiler(window, setup.workdir / profiling.FOLDER)
        self.stop, self.work, self.ledger = stop, work, work.ledger
        self.heldout: dict[str, float] = {}
        self.data_check: DataCheck | None = None
        self.started_step = self.step  # of this process, also after going back
        self.step_line = StepLine(self.screen, config_lib.total_steps(self.config))

    def all_phases(self) -> dict[str, Any]:
        """Train what is left of every phase and summarise."""
        for index, phase in enumerate(self.config.phases):
            start = config_lib.phase_start(self.config, index)
            facts = self.setup.phases[index]
            sizes = phase.batch_size, facts.examples_per_row
            clock = Clock(self.progress, *sizes, self.ledger.waited)
            running = RunningPhase(index, phase, facts, start, clock)
            if start < self.step <= running.end and self._owes_evaluation(running):
                self._evaluate(running)  # of a step that the run was stopped after, or left out
            if self.step < running.end:
                with self.ledger.spent(wall_time.TRAINING):
                    self._steps_of(running)
            elif self.step == running.end:
                self._save_if_new()
        if not self.heldout:  # finished, evaluated and recorded by an earlier process
            self.heldout = self._evaluation(len(self.config.phases) - 1)
        self._await_save()
        self._refuse_damaged_data(waits=True)
        return self._summary()

    def close(self) -> None:
        """End what works beside the steps, a trace that was begun included."""
        self._say_where(self.profiler.close())
        self.in_flight.close()
        del self.state  # where the run rolls back, its memory is needed

    def _batches(self, running: RunningPhase) -> PlacedBatches:
        setup, batch_size = self.setup, running.phase.batch_size
        rows = mesh_lib.process_rows(batch_size, setup.mesh)

        def place(batch: HostBatch) -> PlacedBatch:
            return mesh_lib.place_rows(batch, setup.mesh, batch_size, rows)

        source = setup.feed.train_batches(running.index, self.step - running.start, rows)
        return PlacedBatches(source, place)

    def _steps_of(self, running: RunningPhase) -> None:
        with contextlib.closing(self._batches(running)) as batches:
            self._stop_if_asked()
            self._compile_steps(running)
            self._stop_if_asked()
            what = f"phase {running.index}: taking the first step"
            # Until the other processes have compiled it as well.
            with self.work.doing(wall_time.TRAINING, what):
                self._take(running, batches)
                self.ledger.waited(self.in_flight.all_ended())
            running.clock.start()  # from now on time is training time
            self.step_line.restart(self.step)
            self._after_step(running)
            while self.step < running.end:
                with self.work.step(self.step + 1):
                    running.clock.waited(self.in_flight.make_room())
                    self._take(running, batches)
                running.clock.step()
                self._show_step(running)
                self._after_step(running)

    def _compile_steps(self, running: RunningPhase) -> None:
        index, first_step = running.index, self.step - running.start
        what = f"phase {index}: compiling the step"
        if self.programs.is_ready(index):
            self.screen.say(f"phase {index}: the step is compiled already", FAINT)
            self.programs.compile_steps(index, first_step)
            return
        self.screen.say_without_line(what)
        with self.work.doing(wall_time.COMPILING, what) as show:
            self.programs.compile_steps(index, first_step, lambda which: show(what + which))

    def _take(self, running: RunningPhase, batches: PlacedBatches) -> None:
        """Give the next step to the devices."""
        asked_secs = time.perf_counter()
        batch = next(batches)
        got_secs = time.perf_counter()
        take_step = self.programs.step(running.index, batch)
        self.profiler.before(self.step + 1, self.state)
        with jax.profiler.StepTraceAnnotation("step", step_num=self.step + 1):
            self.state, sums = take_step(self.state, batch)
        self.step = self.ledger.step = self.step + 1
        self.in_flight.add(sums, asked_secs, got_secs)
        self.readings.add(self.step, sums)

    def _show_step(self, running: RunningPhase) -> None:
        ended, phase = self.step - self.in_flight.count, running.phase
        positions = self.readings.positions_left(running, ended)
        examples = phase.batch_size * running.facts.examples_per_row
        self.step_line.show(ended, examples, positions / (phase.batch_size * phase.seq_len))

    def _say_where(self, trace: str | None) -> None:
        if trace is not None:
            self.screen.say(f"profile: {trace}")
            self.screen.say(profiling.HOW_TO_OPEN)

    def _after_step(self, running: RunningPhase) -> None:
        if self.profiler.is_last(self.step):
            running.clock.waited(self.in_flight.all_ended())
            running.clock.note()
            self._say_where(self.profiler.close())
            running.clock.start()
        stopping = self.stop.is_asked()
        if stopping:
            self._refuse_damaged_data()
        evaluate = not stopping and self._owes_evaluation(running)
        save = self.step == running.end or stopping or self.checkpoints.due(self.step)
        if evaluate or save:
            with self.work.step(self.step + 1):
                running.clock.waited(self.in_flight.all_ended())
            self.readings.read(running, self.step)
        elif (self.step - 1) % self.config.log_every_steps == 0:
            self.readings.read(running, self.step - 1)
        if evaluate:
            self._evaluate(running)
        if save:
            self._save()
        if stopping:
            raise self._saved_and_stopped()
        if evaluate or save:
            running.clock.start()
            self.step_line.restart(self.step)
        secs_left = running.clock.secs_for((running.end - self.step) * running.phase.batch_size)
        if secs_left is not None and secs_left <= COMPILE_AHEAD_SECS:
            self.programs.begin(running.index + 1)

    def _save(self) -> None:
        with self.work.doing(wall_time.SAVING, f"saving step {self.step:,}"):
            self.bad_steps.check_finite(bool(guard.all_finite(self.state.params)), self.step)
            self.ledger.write()
            self.setup.storage.publish()  # first: a run that goes on from here must find its lines
            numbers = dataclasses.asdict(self.progress)
            self.checkpoints.save(self.step, self.state, numbers, self.screen.say)

    def _save_if_new(self) -> None:
        if self.checkpoints.latest_step != self.step:
            self._save()

    def _stop_if_asked(self) -> None:
        """Raise if the run is to stop here, between two steps, once it is saved."""
        if self.stop.is_asked():
            self._refuse_damaged_data()
            self._save_if_new()
            raise self._saved_and_stopped()

    def _refuse_damaged_data(self, waits: bool = False) -> None:
        """Raise if what the run trains on is damaged; with waits, read all of it first.

        Raises:
          Refused: on every process alike; what this process has saved since is set aside.
        """
        if self.data_check is None:
            return
        with self.work.doing(wall_time.SAVING, "verifying the store"):
            problem = self.data_check.problem(self.config.hosts.stuck_secs, waits)
            if not problem:
                return
            words = f"trained on damaged data since step {self.started_step:,}"
            moved = self.checkpoints.quarantine_after(self.started_step, words, self.screen.say)
        raise Refused(data_check.refusal(problem, self.started_step, self.step, *moved))

    def _saved_and_stopped(self) -> Interrupted:
        self._await_save()
        return Interrupted(self.stop.signal_number, self.step)

    def _await_save(self) -> None:
        what = f"saving step {self.checkpoints.latest_step}"
        with self.work.doing(wall_time.SAVING, what):
            self.checkpoints.wait()

    def _owes_evaluation(self, running: RunningPhase) -> bool:
        is_due = self.step == running.end or self.step % self.config.eval.every_steps == 0
        return is_due and self.progress.evaluated_step != self.step

    def _evaluation(self, index: int) -> dict[str, float]:
        """The means over a phase's held-out examples."""
        facts, results = self.setup.phases[index], []
        what = f"evaluating on {facts.heldout_examples:,} held-out examples"
        with self.work.doing(wall_time.EVALUATING, what):
            with self.ledger.spent(wall_time.COMPILING):
                self.programs.compile_evaluations(index)
            for batch in facts.heldout_batches:
                self._stop_if_asked()
                placed = mesh_lib.place(batch, self.setup.mesh)
                evaluate = self.programs.evaluation(index, placed)
                results.append(jax.device_get(evaluate(self.state.params, placed)))
        return facts.heldout_scores(results)

    def _evaluate(self, running: RunningPhase) -> None:
        self.heldout = self._evaluation(running.index)
        self.progress.evaluated_step = self.step
        self.records.write(self.step, "heldout", self.heldout | running.facts.baseline)
        running.facts.show(self.screen, self.step, self.heldout)

    def _summary(self) -> dict[str, Any]:
        train_secs = max(self.progress.train_secs, 1e-9)
        return {
            **{f"heldout_{name}": value for name, value in self.heldout.items()},
            **self.setup.phases[-1].baseline,
            "sequences_per_sec": self.progress.timed_sequences / train_secs,
            "input_wait_share": self.progress.input_wait_secs / train_secs,
            "train_secs": self.progress.train_secs,
            "steps": self.step,
            "skipped_steps": self.progress.skipped_steps,
            "left_out_steps": self.progress.left_out_steps,
            "phases": [facts.of_a_step for facts in self.setup.phases],
            "parameters": self.setup.model.parameter_count,
            **self.ledger.summary(),
        }
