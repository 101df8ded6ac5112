"""The training loop: phases of steps, evaluation, saving, records, and an orderly stop.

The host stays two steps ahead of the device and reads a step's numbers after the next step is on
its way. All that the loop itself must remember across a restart is in `Progress`.
"""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from bert_jax import config as config_lib
from bert_jax import config_check, metrics, optim, receipt
from bert_jax import mesh as mesh_lib
from bert_jax import state as state_lib
from bert_jax import step as step_lib
from bert_jax.checkpoint import Checkpoints, check_space, newest_step
from bert_jax.clock import Clock, Progress
from bert_jax.config import Config, Phase
from bert_jax.feed import Feed, open_store
from bert_jax.log import Records
from bert_jax.models import bert
from bert_jax.objectives import Objective
from bert_jax.opening import opening_rows
from bert_jax.phase_facts import PhaseFacts, facts_of
from bert_jax.receipt import CHECKPOINTS
from bert_jax.screen import Screen
from bert_jax.state import TrainState
from bert_jax.stopping import Interrupted, noted

STEPS_AHEAD = 2  # steps given to the device before the host waits for the oldest


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run is made of, checked; nothing in it changes."""

    config: Config
    objective: Objective
    workdir: pathlib.Path
    feed: Feed
    phases: tuple[PhaseFacts, ...]
    mesh: jax.sharding.Mesh
    model: bert.Model
    tx: optax.GradientTransformation
    where: TrainState
    screen: Screen


def prepare(
    config: Config,
    objective: Objective,
    workdir: pathlib.Path,
    devices: Sequence[jax.Device] | None = None,
) -> Setup:
    """Check all that can be checked before compiling, and build what the run is made of.

    Runs on all devices unless some are given. Leaves a receipt of the run in workdir.

    Raises:
      ValueError, OSError: one sentence about the first thing that does not fit.
    """
    config_check.check(config)
    screen = Screen(is_writer=jax.process_index() == 0)
    with screen.copying(config.data.store) as advance:
        store = open_store(config.data, advance)
    config = config_lib.with_vocab_size(config, store.vocab_size)
    receipt.check(workdir, config, store)
    done, total = newest_step(workdir / CHECKPOINTS), config_lib.total_steps(config)
    if done is not None and done > total:
        raise ValueError(
            f"{workdir} holds a run of {done:,} steps, the phases of this config end after "
            f"{total:,}; give the last phase more steps, or another --workdir"
        )
    mesh_lib.check(config, jax.device_count() if devices is None else len(devices))
    if jax.process_count() > 1:
        receipt.check_processes_agree(config, store)
    feed = Feed(store, config)
    with screen.spinning("counting the examples of the store"):
        feed.check()
        phases = tuple(facts_of(feed, index, objective) for index in range(len(config.phases)))
    mesh = mesh_lib.make(config.mesh, devices)
    jax.set_mesh(mesh)
    model = bert.build(config.model, jax.default_backend(), mesh.shape["model"], config.compute)
    if done is None or done < total:
        check_space(workdir / CHECKPOINTS, config.checkpoint, model)
    tx = optim.optimizer(config.optim)
    cut_over_data = "zero1" in mesh_lib.presets(config.mesh)
    where = state_lib.layout(model, tx, mesh, cut_over_data)
    workdir.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
        receipt.write(workdir, config, store)
    return Setup(config, objective, workdir, feed, phases, mesh, model, tx, where, screen)


def train(setup: Setup) -> dict[str, Any]:
    """Train from the newest checkpoint in the workdir, or from scratch, to the end; summarise.

    Raises:
      FloatingPointError: a loss or gradient is not finite.
      Interrupted: SIGINT or SIGTERM came; the run is saved and goes on when started again.
    """
    stop_signals: list[int] = []

    def stop_after_step(signal_number: int) -> None:
        stop_signals.append(signal_number)
        # Not print: a handler may come in the middle of one.
        os.write(1, b"stopping after this step; once more to stop without saving\n")

    with noted(stop_after_step):
        return _train(setup, stop_signals)


def _train(setup: Setup, stop_signals: list[int]) -> dict[str, Any]:
    """Train until there is a stop signal, which may come at any time."""
    config = setup.config
    checkpoints = Checkpoints(setup.workdir / CHECKPOINTS, config.checkpoint, setup.model)
    summary = None
    try:
        done = checkpoints.latest_step
        block = opening_rows(config, setup.mesh, setup.model, setup.feed.store, setup.phases, done)
        setup.screen.table(f"pre-training in {setup.workdir}", block)
        what = "drawing the initial weights" if done is None else f"restoring step {done:,}"
        with setup.screen.spinning(what):
            state, progress = start(setup, checkpoints)
        records = Records(setup.workdir, int(state.step), jax.process_index() == 0)
        try:
            run = _Run(setup, checkpoints, records, state, progress, stop_signals)
            summary = run.all_phases()
        finally:
            records.close(summary)
    finally:
        checkpoints.close()
    return summary


def start(setup: Setup, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
    """The state to go on from: of the newest checkpoint, or fresh."""
    if checkpoints.latest_step is None:
        return state_lib.init(setup.model, setup.tx, setup.where, setup.config.seed), Progress()
    abstract = state_lib.abstract(setup.model, setup.tx, setup.where)
    state, numbers = checkpoints.restore(abstract)
    return state, Progress(**numbers)


@dataclasses.dataclass(frozen=True)
class _RunningPhase:
    """A phase under way: what stays the same over its steps, and its clock."""

    index: int
    phase: Phase
    facts: PhaseFacts
    start: int  # its first step, counted from the start of the run
    clock: Clock

    @property
    def end(self) -> int:
        return self.start + self.phase.steps


class _Run:
    """A run under way: the state that steps hand on, and what of it is still to be read."""

    def __init__(
        self,
        setup: Setup,
        checkpoints: Checkpoints,
        records: Records,
        state: TrainState,
        progress: Progress,
        stop_signals: list[int],
    ) -> None:
        self.setup, self.config, self.screen = setup, setup.config, setup.screen
        self.checkpoints, self.records = checkpoints, records
        self.state, self.progress = state, progress
        self.step = int(state.step)
        self.eval_step = step_lib.eval_step(setup.model, setup.objective)
        self.unread: list[tuple[int, Any]] = []  # (step, sums on the device)
        self.stop_signals = stop_signals
        self.heldout: dict[str, float] = {}
        self.end_is_told = False

    def all_phases(self) -> dict[str, Any]:
        """Train what is left of every phase and summarise."""
        for index, phase in enumerate(self.config.phases):
            start = config_lib.phase_start(self.config, index)
            if self.step < start + phase.steps:
                facts = self.setup.phases[index]
                clock = Clock(self.progress, phase.batch_size, facts.examples_per_row)
                self._steps_of(_RunningPhase(index, phase, facts, start, clock))
        if not self.heldout:  # finished, evaluated and recorded by an earlier process
            self.heldout = self._evaluation(self.setup.phases[-1])
        return self._summary()

    def _steps_of(self, running: _RunningPhase) -> None:
        phase, setup = running.phase, self.setup
        take_step = step_lib.train_step(
            setup.model, setup.objective, setup.tx, self.config, phase, setup.where
        )
        rows = mesh_lib.process_rows(phase.batch_size, setup.mesh)
        batches = setup.feed.train_batches(running.index, self.step - running.start, rows)

        def take(batch: dict[str, np.ndarray]) -> None:
            placed = mesh_lib.place_rows(batch, setup.mesh, phase.batch_size, rows)
            self.state, sums = take_step(self.state, placed)
            self.step += 1
            self.unread.append((self.step, sums))

        try:
            with self.screen.waiting(f"phase {running.index}: compiling the step"):
                take(next(batches))
                jax.block_until_ready(self.unread[-1][1])
            running.clock.start()  # from now on time is training time
            self._after_step(running)
            for batch in batches:
                take(batch)
                running.clock.step()
                self._after_step(running)
        finally:
            batches.close()

    def _after_step(self, running: _RunningPhase) -> None:
        if len(self.unread) > STEPS_AHEAD:
            jax.block_until_ready(self.unread[-1 - STEPS_AHEAD][1])
        stopping = bool(self.stop_signals)
        evaluate = self.step == running.end or self.step % self.config.eval.every_steps == 0
        save = self.step == running.end or stopping or self.checkpoints.due(self.step)
        if evaluate or save:
            self._read(running, self.step)
        elif (self.step - 1) % self.config.log_every_steps == 0:
            self._read(running, self.step - 1)
        if evaluate:
            self._evaluate(running)
        if save:
            self.checkpoints.save(self.step, self.state, dataclasses.asdict(self.progress))
        if stopping:
            raise Interrupted(self.stop_signals[0], self.step)
        if evaluate or save:
            running.clock.start()

    def _read(self, running: _RunningPhase, up_to_step: int) -> None:
        """Bring the sums of finished steps to the host, and write a line where one is due."""
        finished = [(step, sums) for step, sums in self.unread if step <= up_to_step]
        self.unread = self.unread[len(finished) :]
        for step, sums in jax.device_get(finished):
            numbers = metrics.flat(sums)
            metrics.check_finite(numbers, step)
            self.progress.interval = metrics.add(self.progress.interval, numbers)
            if step % self.config.log_every_steps == 0:
                running.clock.note()
                self._record_interval(running, step)
        if self.step == up_to_step:
            running.clock.note()

    def _record_interval(self, running: _RunningPhase, step: int) -> None:
        line = metrics.read(self.progress.interval)
        self.progress.interval = {}
        pace, secs_left = running.clock.rows_per_sec, None
        if pace is not None:  # the step that was compiled for is not timed
            line["sequences_per_sec"] = pace * running.facts.examples_per_row
            secs_left = self._positions_left(running, step) / (pace * running.phase.seq_len)
        self.records.write(step, "train", line)
        self.screen.training_line(step, config_lib.total_steps(self.config), line, secs_left)
        if secs_left is not None and not self.end_is_told:
            self.screen.expected_end(secs_left)
            self.end_is_told = True

    def _positions_left(self, running: _RunningPhase, step: int) -> int:
        """Positions still to be trained on; one costs the same in every phase, about."""
        phases = (
            dataclasses.replace(running.phase, steps=running.end - step),
            *self.config.phases[running.index + 1 :],
        )
        return sum(phase.steps * phase.batch_size * phase.seq_len for phase in phases)

    def _evaluation(self, facts: PhaseFacts) -> dict[str, float]:
        """The means over a phase's held-out examples."""
        total: dict[str, float] = {}
        with self.screen.spinning(f"evaluating on {facts.heldout_examples:,} held-out examples"):
            for batch in facts.heldout_batches:
                placed = mesh_lib.place(batch, self.setup.mesh)
                sums = jax.device_get(self.eval_step(self.state.params, placed))
                total = metrics.add(total, metrics.flat(sums))
        return metrics.read_heldout(total)

    def _evaluate(self, running: _RunningPhase) -> None:
        self.heldout = self._evaluation(running.facts)
        baseline = running.facts.baseline
        self.records.write(self.step, "heldout", self.heldout | baseline)
        self.screen.heldout_line(self.step, self.heldout, baseline)

    def _summary(self) -> dict[str, Any]:
        return {
            **{f"heldout_{name}": value for name, value in self.heldout.items()},
            **self.setup.phases[-1].baseline,
            "sequences_per_sec": self.progress.timed_sequences
            / max(self.progress.train_secs, 1e-9),
            "train_secs": self.progress.train_secs,
            "steps": self.step,
            "phases": [facts.of_a_step for facts in self.setup.phases],
            "parameters": self.setup.model.parameter_count,
        }
