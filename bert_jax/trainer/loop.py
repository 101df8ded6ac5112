"""Run the training loop: phases of steps, evaluation, saving, roll-backs and an orderly stop.

Batches are placed on the devices in advance, steps are dispatched ahead of time, and their results
are read one step late, so the loop never waits for the newest step. `Progress` holds everything it
must remember across a restart.

Read train, _train, _Run.all_phases, _Run._steps_of and _Run._take, which calls the compiled step:
lower_step in trainer/compile.py makes it from train_step/step.py.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.checkpoint.restore import NoIntactCheckpoint
from bert_jax.config import Phase, RunConfig
from bert_jax.logging.console import FAINT, StepLine
from bert_jax.logging.metrics_writer import SUMMARY, Records
from bert_jax.logging.wandb_writer import WandbWriter
from bert_jax.monitoring.rules import Finding, PhaseFacts
from bert_jax.monitoring.watch import Watch
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import goodput, profiler
from bert_jax.runtime.goodput import Ledger
from bert_jax.runtime.preemption import Interrupted, Stop
from bert_jax.runtime.profiler import Profiler
from bert_jax.runtime.watchdog import Watchdog, Work
from bert_jax.train_step import guard, metrics
from bert_jax.train_step.state import TrainState
from bert_jax.trainer.bad_steps import BadSteps, RollBack, SkippedRanges
from bert_jax.trainer.compile import Programs
from bert_jax.trainer.feed import DataCheck, RunPhase, StoreFeed, describe_damage
from bert_jax.trainer.prefetch import PlacedBatch, StepsInFlight, place_ahead
from bert_jax.trainer.setup import Setup, begin_anew, open_checkpoints, restore_or_initialize
from bert_jax.trainer.summary import opening_rows
from bert_jax.trainer.throughput import Progress, StepClock
from data_pipeline.io.refused import Refused

INPUT_BOUND_SHARE = 0.1  # share of an interval spent waiting for input that triggers a warning
REMINDER_SECS = 1800.0  # minimum time between two such warnings


@dataclasses.dataclass(frozen=True)
class RunningPhase:
    """Hold the constants of the phase being trained, and its clock."""

    index: int
    phase: Phase
    facts: RunPhase
    start: int  # its first step, counted from the start of the run
    clock: StepClock

    @property
    def end(self) -> int:
        """Return its last step, counted from the start of the run."""
        return self.start + self.phase.steps


class StepReader:
    """Fetch the results of steps one step late, and log a line for each interval."""

    def __init__(
        self,
        setup: Setup,
        records: Records,
        bad_steps: BadSteps,
        ledger: Ledger,
        progress: Progress,
    ) -> None:
        self._config, self._screen, self._feed = setup.config, setup.screen, setup.feed
        self._records, self._bad_steps = records, bad_steps
        self._ledger, self._progress = ledger, progress
        self._unread: list[tuple[int, Any]] = []  # (step, sums on the device)
        self._end_was_shown = False
        self._input_warned_secs = float("-inf")

    def add(self, step: int, sums: Any) -> None:
        """Add the results of a step, and start copying them to the host."""
        for leaf in jax.tree.leaves(sums):
            leaf.copy_to_host_async()
        self._unread.append((step, sums))

    def read(self, running: RunningPhase, up_to_step: int) -> None:
        """Wait for the steps up to this one, and log a line if one is due.

        Raises FloatingPointError or RollBack at a bad step, if the guard asks for it.
        """
        finished = [(step, sums) for step, sums in self._unread if step <= up_to_step]
        self._unread = self._unread[len(finished) :]
        for step, sums in jax.device_get(finished):
            self._count(step, sums)
            if step % self._config.log_every_steps == 0 or self._ends_objective(running, step):
                running.clock.end_interval(len(self._unread))
                self._record_interval(running, step)
        if not self._unread:
            running.clock.end_interval()

    def _ends_objective(self, running: RunningPhase, step: int) -> bool:
        """Return whether another objective follows, whose losses have other names."""
        following = self._config.phases[running.index + 1 :]
        return (
            step == running.end
            and bool(following)
            and following[0].objective != running.phase.objective
        )

    def _count(self, step: int, sums: Any) -> None:
        numbers, interval = metrics.flatten(sums), self._progress.interval
        if numbers["skipped"]:
            self._progress.interval = metrics.add_skipped(interval, numbers)
            self._bad_steps.report_bad(step, numbers, sums["guard"].usual)
        else:
            self._progress.interval = metrics.add_step(interval, numbers)
            self._progress.bad_in_a_row = 0

    def _record_interval(self, running: RunningPhase, step: int) -> None:
        line = metrics.compute_means(self._progress.interval)
        self._progress.interval = {}
        pace, secs_left = running.clock.rows_per_sec, None
        if pace is not None:  # None until a step without compilation was timed
            line["sequences_per_sec"] = pace * running.facts.examples_per_row
            line["input_wait_share"] = running.clock.input_wait_share
            secs_left = self.positions_left(running, step) / (pace * running.phase.seq_len)
        line["goodput"] = self._ledger.goodput
        self._ledger.write()
        self._records.write(step, "train", line)
        if "loss" in line:
            self._screen.training_line(step, config_lib.total_steps(self._config), line, secs_left)
        if secs_left is not None and not self._end_was_shown:
            self._screen.expected_end(secs_left)
            self._end_was_shown = True
        self._warn_if_input_bound(running.clock.input_wait_share)

    def _warn_if_input_bound(self, share: float) -> None:
        now_secs = time.monotonic()
        if share >= INPUT_BOUND_SHARE and now_secs - self._input_warned_secs >= REMINDER_SECS:
            self._screen.input_bound(share, self._feed.advice)
            self._input_warned_secs = now_secs

    def positions_left(self, running: RunningPhase, step: int) -> int:
        """Count the token positions left to train on; the cost of one is similar in all phases."""
        phases = (
            dataclasses.replace(running.phase, steps=running.end - step),
            *self._config.phases[running.index + 1 :],
        )
        return sum(phase.steps * phase.batch_size * phase.seq_len for phase in phases)


COMPILE_AHEAD_SECS = 900.0  # time before the end of a phase when the next one starts compiling


def train(setup: Setup, watchdog: Watchdog | None = None) -> dict[str, Any]:
    """Train to the end, from the newest checkpoint or step 0; return the summary.

    Raises FloatingPointError if the guard against bad steps stopped the run, and Interrupted if a
    process received a stop signal: the run is then saved and can be resumed.
    """
    stop = Stop()
    watchdog = watchdog or Watchdog()
    with stop.noted(), setup.screen.spinning("starting the run"):
        try:
            return _train(setup, stop, watchdog)
        except NoIntactCheckpoint:
            if not setup.config.checkpoint.fresh:
                raise
        return _train(begin_anew(setup), stop, watchdog)


def _train(setup: Setup, stop: Stop, watchdog: Watchdog) -> dict[str, Any]:
    """Train to the end, restarting from the newest checkpoint after each roll-back."""
    is_writer = jax.process_index() == 0
    checkpoints = open_checkpoints(setup, watchdog.report)
    ledger = Ledger(setup.workdir, setup.began, is_writer)
    work = Work(watchdog, ledger, setup.config.hosts, setup.screen)
    with contextlib.ExitStack() as at_the_end:
        at_the_end.enter_context(ledger)
        last_save = work.doing(goodput.SAVING, "finishing the last save")
        at_the_end.enter_context(checkpoints.closed_after(last_save))
        at_the_end.enter_context(watchdog.reporting())  # ends before the wait for the last save
        is_new = checkpoints.latest_step is None
        if is_new:
            _show_opening(setup, ledger, done=None)
        state, progress = _restore_or_initialize(setup, checkpoints, work)
        started_step = int(state.step)
        if not is_new:  # which checkpoint is complete is known only now
            _show_opening(setup, ledger, done=started_step)
        stores = setup.feed.stores if isinstance(setup.feed, StoreFeed) else ()
        data_check = DataCheck(stores, setup.workdir, stop, setup.config.hosts.stuck_secs)
        at_the_end.callback(data_check.close)
        wandb = None
        if setup.config.log.wandb and is_writer:
            wandb = WandbWriter(setup.workdir, setup.config, setup.screen.print)
        watch = _open_watch(setup)
        records = Records(setup.workdir, started_step, is_writer, wandb, watch)
        programs = Programs(setup.parts, setup.feed, setup.phases)
        services = checkpoints, records, programs, data_check, stop, work
        summary = None
        try:
            skipped = SkippedRanges(setup.workdir, setup.config)
            while summary is None:
                state = skipped.pass_over(state, progress, setup.parts.shardings)
                run = _Run(setup, *services, state, progress, started_step)
                try:
                    with contextlib.closing(run):  # frees the state's memory
                        summary = run.all_phases()
                    break
                except RollBack as bad:
                    roll_back = bad
                state, progress = _restore_or_initialize(setup, checkpoints, work)
                skipped.add(int(state.step), roll_back, run.bad_steps)
                setup.storage.publish()  # so that a run killed after this resumes identically
                records.go_back(int(state.step))
            if watch is not None:
                summary["findings"] = [finding.as_record() for finding in watch.findings]
        finally:
            if programs.close():
                setup.screen.print("a phase is still being compiled, which ends by itself alone")
            records.close(summary)
    return summary


def _open_watch(setup: Setup) -> Watch | None:
    """Make what looks for trouble in a pre-training; a fine-tuning has none."""
    config = setup.config
    if not isinstance(config, config_lib.Config):
        return None
    phases = [
        PhaseFacts(
            config_lib.phase_start(config, index),
            facts.baseline,
            facts.per_step["predictions_per_step"],
            facts.per_step["examples_per_step"],
        )
        for index, facts in enumerate(setup.phases)
    ]

    def show(finding: Finding) -> None:
        setup.screen.finding(finding.rule, finding.sentence, finding.advice)

    return Watch(config, phases, setup.findings, show)


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
    """Print the first block; `done` is the step of the restored checkpoint."""
    rows = opening_rows(setup, done)
    rows += [*setup.storage.rows(), *ledger.opening_rows()]
    setup.screen.table(f"{setup.feed.provenance.learns} in {setup.storage.address}", rows)


def _describe_change(config: RunConfig, index: int) -> str:
    """Say what makes the loss jump where a phase begins; "" for nothing."""
    phase, before = config.phases[index], config.phases[max(0, index - 1)]
    news = []
    if phase.seq_len != before.seq_len:
        news.append(f"rows of {phase.seq_len:,}")
    if index and phase.restart_learning_rate:
        news.append(f"learning rate restarts at {phase.restart_learning_rate:g}")
    return ", ".join(news)


@dataclasses.dataclass
class _Run:
    """Train from a state until the run ends or rolls back to a checkpoint.

    The services are opened once by a process, and kept across roll-backs.
    """

    setup: Setup
    checkpoints: Checkpoints
    records: Records
    programs: Programs
    data_check: DataCheck
    stop: Stop
    work: Work
    state: TrainState
    progress: Progress
    started_step: int  # of the state that this process began with

    def __post_init__(self) -> None:
        setup, self.config, self.screen = self.setup, self.setup.config, self.setup.screen
        self.ledger, self.step = self.work.ledger, int(self.state.step)
        self.in_flight = StepsInFlight()
        self.bad_steps = BadSteps(
            setup.storage, self.config, setup.feed, self.screen, self.progress
        )
        self.bad_steps.cut_after(self.step)
        self.readings = StepReader(setup, self.records, self.bad_steps, self.ledger, self.progress)
        window = setup.profiled if jax.process_index() == 0 else None
        self.profiler = Profiler(window, setup.workdir / profiler.FOLDER)
        self.heldout: dict[str, float] = {}
        self.step_line = StepLine(self.screen, config_lib.total_steps(self.config))

    def all_phases(self) -> dict[str, Any]:
        """Train all remaining steps of all phases; return the summary."""
        for index, phase in enumerate(self.config.phases):
            start = config_lib.phase_start(self.config, index)
            facts = self.setup.phases[index]
            sizes = phase.batch_size, facts.examples_per_row
            clock = StepClock(self.progress, *sizes, self.ledger.waited)
            running = RunningPhase(index, phase, facts, start, clock)
            if start < self.step <= running.end and self._owes_evaluation(running):
                self._evaluate(running)  # after a stop or a roll-back
            if self.step < running.end:
                with self.ledger.spent(goodput.TRAINING):
                    self._steps_of(running)
            elif self.step == running.end:
                self._save_if_new()
        if not self.heldout:  # finished, evaluated and recorded by an earlier process
            self.heldout = self._evaluation(len(self.config.phases) - 1)
        self._await_save()
        self._refuse_damaged_data(waits=True)
        return self._summary()

    def close(self) -> None:
        """Stop the background threads, and a profiler trace if one was started."""
        self._show_trace(self.profiler.close())
        self.in_flight.close()
        del self.state  # a roll-back needs its memory

    def _batches(
        self, running: RunningPhase
    ) -> contextlib.AbstractContextManager[Iterator[PlacedBatch]]:
        mesh, batch_size = self.setup.parts.mesh, running.phase.batch_size
        rows = mesh_lib.process_rows(batch_size, mesh)
        source = self.setup.feed.train_batches(running.index, self.step - running.start, rows)
        return place_ahead(
            source, lambda batch: mesh_lib.place_batch_rows(batch, mesh, batch_size, rows)
        )

    def _steps_of(self, running: RunningPhase) -> None:
        with self._batches(running) as batches:
            self._stop_if_asked()
            self._compile_steps(running)
            self._stop_if_asked()
            words = f"phase {running.index}: taking the first step"
            # Wait until the other processes have compiled it as well.
            with self.work.doing(goodput.TRAINING, words):
                self._take(running, batches)
                self.ledger.waited(self.in_flight.wait_for_all())
            running.clock.start()  # from now on time is training time
            self.step_line.restart(self.step)
            self._after_step(running)
            while self.step < running.end:
                with self.work.step(self.step + 1):
                    running.clock.add_wait(self.in_flight.make_room())
                    self._take(running, batches)
                running.clock.count_step()
                self._show_step(running)
                self._after_step(running)

    def _compile_steps(self, running: RunningPhase) -> None:
        index, first_step = running.index, self.step - running.start
        words = f"phase {index}: compiling the step"
        news = _describe_change(self.config, index) if first_step == 0 else ""
        if self.programs.is_ready(index):
            news += "; " * bool(news)
            self.screen.print(f"phase {index}: {news}the step is compiled already", FAINT)
            self.programs.compile_steps(index, first_step)
            return
        if news:
            self.screen.print(f"phase {index}: {news}", FAINT)
        self.screen.print_without_line(words)
        with self.work.doing(goodput.COMPILING, words) as show:
            self.programs.compile_steps(index, first_step, lambda shape: show(words + shape))

    def _take(self, running: RunningPhase, batches: Iterator[PlacedBatch]) -> None:
        """Dispatch the next step to the devices."""
        asked_secs = time.perf_counter()
        batch = next(batches)
        got_secs = time.perf_counter()
        take_step = self.programs.step(running.index, batch)
        self.profiler.before(self.step + 1, self.state)
        with jax.profiler.StepTraceAnnotation("step", step_num=self.step + 1):
            self.state, sums = take_step(self.state, batch, *self.setup.frozen)
        self.step = self.ledger.step = self.step + 1
        self.in_flight.add(sums, asked_secs, got_secs)
        self.readings.add(self.step, sums)

    def _show_step(self, running: RunningPhase) -> None:
        ended, phase = self.step - self.in_flight.count, running.phase
        positions = self.readings.positions_left(running, ended)
        examples = phase.batch_size * running.facts.examples_per_row
        self.step_line.show(ended, examples, positions / (phase.batch_size * phase.seq_len))

    def _show_trace(self, trace: str | None) -> None:
        if trace is not None:
            self.screen.print(f"profile: {trace}")
            self.screen.print(profiler.HOW_TO_OPEN)

    def _after_step(self, running: RunningPhase) -> None:
        if self.profiler.is_last(self.step):
            running.clock.add_wait(self.in_flight.wait_for_all())
            running.clock.end_interval()
            self._show_trace(self.profiler.close())
            running.clock.start()
        stopping = self.stop.is_asked()
        if stopping:
            self._refuse_damaged_data()
        evaluate = not stopping and self._owes_evaluation(running)
        save = self.step == running.end or stopping or self.checkpoints.is_due(self.step)
        if evaluate or save:
            with self.work.step(self.step + 1):
                running.clock.add_wait(self.in_flight.wait_for_all())
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

    def _save_if_new(self) -> None:
        if self.checkpoints.latest_step != self.step:
            self._save()

    def _stop_if_asked(self) -> None:
        """Save and raise Interrupted if a stop is due between these steps."""
        if self.stop.is_asked():
            self._refuse_damaged_data()
            self._save_if_new()
            raise self._saved_and_stopped()

    def _refuse_damaged_data(self, waits: bool = False) -> None:
        """Raise Refused on every process if data are damaged; with `waits`, verify all files first.

        Checkpoints saved since this process started are quarantined before.
        """
        with self.work.doing(goodput.SAVING, "verifying the store"):
            problem = self.data_check.problem(self.config.hosts.stuck_secs, waits)
            if not problem:
                return
            words = f"trained on damaged data since step {self.started_step:,}"
            moved = self.checkpoints.quarantine_after(self.started_step, words, self.screen.print)
        raise Refused(describe_damage(problem, self.started_step, self.step, *moved))

    def _saved_and_stopped(self) -> Interrupted:
        self._await_save()
        return Interrupted(self.stop.signal_number, self.step)

    def _await_save(self) -> None:
        words = f"saving step {self.checkpoints.latest_step}"
        with self.work.doing(goodput.SAVING, words):
            self.checkpoints.wait()

    def _owes_evaluation(self, running: RunningPhase) -> bool:
        is_due = self.step == running.end or self.step % self.config.eval.every_steps == 0
        return is_due and self.progress.evaluated_step != self.step

    def _evaluation(self, index: int) -> dict[str, float]:
        """Evaluate the parameters on a phase's held-out examples."""
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
        return facts.heldout_scores(results)

    def _evaluate(self, running: RunningPhase) -> None:
        self.heldout = self._evaluation(running.index)
        self.progress.evaluated_step = self.step
        running.facts.show(self.screen, self.step, self.heldout)
        self.records.write(self.step, "heldout", self.heldout | running.facts.baseline)

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
            "phases": [facts.per_step for facts in self.setup.phases],
            "parameters": self.setup.parts.model.parameter_count,
            **self.ledger.summary(),
        }
