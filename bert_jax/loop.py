"""The training loop: phases of steps, evaluation, saving, records, and an orderly stop.

The host stays two steps ahead of the device and reads a step's numbers after the next step is on
its way. All that the loop itself must remember across a restart is in `Progress`.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from bert_jax import baselines, metrics, optim, receipt
from bert_jax import config as config_lib
from bert_jax import mesh as mesh_lib
from bert_jax import state as state_lib
from bert_jax import step as step_lib
from bert_jax.checkpoint import Checkpoints, newest_step
from bert_jax.clock import Clock, Progress
from bert_jax.config import Config
from bert_jax.feed import Feed, open_store
from bert_jax.log import Records, training_line
from bert_jax.models import bert
from bert_jax.objectives import Objective
from bert_jax.state import Layout, TrainState
from bert_jax.stopping import Interrupted, noted

CHECKPOINTS = "checkpoints"  # folder in the workdir
STEPS_AHEAD = 2  # steps given to the device before the host waits for the oldest


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run is made of, checked; nothing in it changes."""

    config: Config
    objective: Objective
    workdir: pathlib.Path
    feed: Feed
    mesh: jax.sharding.Mesh
    model: bert.Model
    tx: optax.GradientTransformation
    where: Layout


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
    config_lib.check(config)
    store = open_store(config)
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
    feed.check()
    mesh = mesh_lib.make(config.mesh, devices)
    jax.set_mesh(mesh)
    model = bert.build(config.model, jax.default_backend(), mesh.shape["model"])
    tx = optim.optimizer(config.optim)
    cut_over_data = "zero1" in mesh_lib.presets(config.mesh)
    where = state_lib.layout(model, tx, mesh, cut_over_data)
    workdir.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
        receipt.write(workdir, config, store)
    return Setup(config, objective, workdir, feed, mesh, model, tx, where)


def train(setup: Setup) -> dict[str, Any]:
    """Train from the newest checkpoint in the workdir, or from scratch, to the end; summarise.

    Raises:
      FloatingPointError: a loss or gradient is not finite.
      Interrupted: SIGINT or SIGTERM came; the run is saved and goes on when started again.
    """
    folder = setup.workdir / CHECKPOINTS
    checkpoints = Checkpoints(folder, setup.config.checkpoint, setup.model)
    summary = None
    try:
        state, progress = start(setup, checkpoints)
        records = Records(setup.workdir, int(state.step), jax.process_index() == 0)
        try:
            summary = _Run(setup, checkpoints, records, state, progress).all_phases()
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


class _Run:
    """A run under way: the state that steps hand on, and what of it is still to be read."""

    def __init__(
        self,
        setup: Setup,
        checkpoints: Checkpoints,
        records: Records,
        state: TrainState,
        progress: Progress,
    ) -> None:
        self.setup, self.config = setup, setup.config
        self.checkpoints, self.records = checkpoints, records
        self.state, self.progress = state, progress
        self.step = int(state.step)
        self.unread: list[tuple[int, Any]] = []  # (step, sums on the device)
        self.stop_signal: int | None = None
        self.heldout: dict[str, float] = {}
        self.evaluate: Callable[[], dict[str, float]] = dict
        self.baseline: dict[str, float] = {}
        self.clock = Clock(progress, 0)  # each phase starts its own

    def all_phases(self) -> dict[str, Any]:
        """Train what is left of every phase and summarise."""
        self._announce()
        with noted(self._stop_after_step):
            for index, phase in enumerate(self.config.phases):
                start = config_lib.phase_start(self.config, index)
                last = index == len(self.config.phases) - 1
                if self.step < start + phase.steps or (last and not self.heldout):
                    self._begin_phase(index)
                    self._steps_of_phase(index, start)
        return self._summary()

    def _stop_after_step(self, signal_number: int) -> None:
        self.stop_signal = signal_number
        # Not print: a handler may come in the middle of one.
        os.write(1, b"stopping after this step; once more to stop without saving\n")

    def _announce(self) -> None:
        config, model = self.config, self.setup.model
        shape = dict(self.setup.mesh.shape)
        of = self.setup.mesh.devices
        devices = f"{of.size} x {of.flat[0].device_kind}"
        self.records.say(
            f"{devices}, mesh {shape}, {model.parameter_count:,} parameters, "
            f"matmuls in {model.dtype}"
        )
        total = config_lib.total_steps(config)
        if self.step == total:
            self.records.say(f"finished before, at step {total:,}: evaluating once more")
        elif self.step:
            self.records.say(f"resuming at step {self.step:,} of {total:,}")

    def _begin_phase(self, index: int) -> None:
        phase, feed = self.config.phases[index], self.setup.feed
        batches = feed.heldout_batches(index)
        self.baseline = {
            "unigram_mlm_loss": baselines.unigram_mlm_loss(feed.store, batches),
            "majority_nsp_accuracy": baselines.majority_nsp_accuracy(batches),
        }
        evaluate = step_lib.eval_step(self.setup.model, self.setup.objective)

        def run() -> dict[str, float]:
            total: dict[str, float] = {}
            for batch in batches:
                placed = mesh_lib.place(batch, self.setup.mesh)
                sums = jax.device_get(evaluate(self.state.params, placed))
                total = metrics.add(total, metrics.flat(sums))
            return metrics.read_heldout(total)

        self.evaluate = run
        self.records.say(
            f"phase {index}: sequences of {phase.seq_len}, {phase.steps:,} steps of "
            f"{phase.batch_size}; held-out baselines: unigram MLM loss "
            f"{self.baseline['unigram_mlm_loss']:.4f}, majority NSP accuracy "
            f"{self.baseline['majority_nsp_accuracy']:.3f}"
        )

    def _steps_of_phase(self, index: int, start: int) -> None:
        phase, setup = self.config.phases[index], self.setup
        take_step = step_lib.train_step(
            setup.model, setup.objective, setup.tx, self.config, phase, setup.where
        )
        rows = mesh_lib.process_rows(phase.batch_size, setup.mesh)
        batches = setup.feed.train_batches(index, self.step - start, rows)
        self.clock = Clock(self.progress, phase.batch_size)
        try:
            for batch in batches:
                placed = mesh_lib.place_rows(batch, setup.mesh, phase.batch_size, rows)
                self.state, sums = take_step(self.state, placed)
                self.step += 1
                self.unread.append((self.step, sums))
                self._after_step(last_of_phase=self.step == start + phase.steps)
        finally:
            batches.close()
        if not self.heldout:  # finished, evaluated and recorded by an earlier process
            self.heldout = self.evaluate()

    def _after_step(self, last_of_phase: bool) -> None:
        if len(self.unread) > STEPS_AHEAD:
            jax.block_until_ready(self.unread[-1 - STEPS_AHEAD][1])
        if self.clock.running:
            self.clock.step()
        else:
            jax.block_until_ready(self.unread[-1][1])  # compiled: from now on time is training time
            self.clock.start()
        stopping = self.stop_signal is not None
        evaluate = last_of_phase or self.step % self.config.eval.every_steps == 0
        save = last_of_phase or stopping or self.checkpoints.due(self.step)
        if evaluate or save:
            self._read(self.step)
        elif (self.step - 1) % self.config.log_every_steps == 0:
            self._read(self.step - 1)
        if evaluate:
            self._evaluate()
        if save:
            self.checkpoints.save(self.step, self.state, dataclasses.asdict(self.progress))
        if stopping:
            raise Interrupted(self.stop_signal or 0, self.step)
        if evaluate or save:
            self.clock.start()

    def _read(self, up_to_step: int) -> None:
        """Bring the sums of finished steps to the host, and write a line where one is due."""
        finished = [(step, sums) for step, sums in self.unread if step <= up_to_step]
        self.unread = self.unread[len(finished) :]
        for step, sums in jax.device_get(finished):
            numbers = metrics.flat(sums)
            metrics.check_finite(numbers, step)
            self.progress.interval = metrics.add(self.progress.interval, numbers)
            if step % self.config.log_every_steps == 0:
                self.clock.note()
                line = metrics.read(self.progress.interval)
                line["sequences_per_sec"] = self.clock.sequences_per_sec
                self.records.write(step, "train", line)
                total = config_lib.total_steps(self.config)
                self.records.say(training_line(step, total, line))
                self.progress.interval = {}
        if self.step == up_to_step:
            self.clock.note()

    def _evaluate(self) -> None:
        self.heldout = self.evaluate()
        self.records.write(self.step, "heldout", self.heldout | self.baseline)
        self.records.say(
            f"held-out at step {self.step:,}:  "
            + "  ".join(f"{name} {value:.4f}" for name, value in self.heldout.items())
        )

    def _summary(self) -> dict[str, Any]:
        return {
            **{f"heldout_{name}": value for name, value in self.heldout.items()},
            **self.baseline,
            "sequences_per_sec": self.progress.timed_sequences
            / max(self.progress.train_secs, 1e-9),
            "train_secs": self.progress.train_secs,
            "steps": self.step,
            "parameters": self.setup.model.parameter_count,
        }
