"""Record bad steps in bad_steps.jsonl and decide whether the run continues, rolls back or stops.

A roll-back restores the newest checkpoint and advances its step number past the bad step, so the
rows in between are left out. Ranges left out are written to left_out.json before the next step
runs, so a run killed after a roll-back resumes identically. In train_step/, guard.py detects bad
steps, and step.py and optimizers.py discard their updates; loop.py performs the roll-back.
"""

import dataclasses
import json
import math
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import Config, RunConfig
from bert_jax.logging.console import BAD, Screen
from bert_jax.logging.metrics_writer import BAD_STEPS, LEFT_OUT
from bert_jax.parallel import processes
from bert_jax.runtime.workdir import Workdir
from bert_jax.train_step import metrics
from bert_jax.train_step.state import TrainState
from bert_jax.trainer.feed import Feed
from bert_jax.trainer.readings import Progress
from data_pipeline.cli.main import find_python
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.jsonl import append_record, read_records, truncate_records
from data_pipeline.io.small_files import DamagedFile, parse_record


def read(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Read the bad steps that a run recorded; [] without a file. Raises DamagedFile."""
    path = workdir / BAD_STEPS
    lines = read_records(path)
    for number, line in enumerate(lines, 1):
        name = f"{path}, entry {number}"
        small_files.field(line, "phase", int, name)
        small_files.field(line, "reason", str, name)
        rows = small_files.field(line, "rows", dict, name)
        small_files.field(rows, "first", int, name)
        small_files.field(rows, "last", int, name)
        small_files.field(rows, "epochs", list, name)
    return lines


class RollBack(Exception):
    """Signal that the run must roll back to its newest checkpoint because of a bad step."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step, self.reason = step, reason


class BadSteps:
    """Report, record and leave out the bad steps of a run in step order; process 0 alone writes."""

    def __init__(self, storage: Workdir, config: RunConfig, feed: Feed, screen: Screen) -> None:
        """Read the ranges left out on process 0 and broadcast them; call `resume` next.

        Other processes' local copies of a workdir in a bucket may be stale.
        """
        self._workdir, self._address = storage.home, storage.address
        self._config, self._feed, self._screen = config, feed, screen
        self._progress = Progress()
        self._is_writer = processes.number() == 0
        text = processes.ask_first(
            f"what {LEFT_OUT} says",
            lambda: json.dumps([dataclasses.asdict(each) for each in read_left_out(storage.home)]),
            config.hosts.start_secs,
        )
        self._left_out = parse_record(json.loads(text), list[LeftOutRange], LEFT_OUT)

    def resume(self, state: TrainState, progress: Progress, shardings: TrainState) -> TrainState:
        """Continue with a restored state and its counters; delete the records of later steps.

        If earlier roll-backs to this state left out steps, its step number advances past them. If
        the first step of a phase is among them, the guard's window starts empty.
        """
        self._progress = progress
        step = int(state.step)
        through = [each.through_step for each in self._left_out if each.after_step == step]
        last = max([step, *through])
        progress.left_out_steps += last - step
        if self._is_writer and (self._workdir / BAD_STEPS).exists():
            truncate_records(self._workdir / BAD_STEPS, last)
        index, window = config_lib.phase_of_step(self._config, last + 1), state.guard
        if step <= config_lib.phase_start(self._config, index) < last:
            count = jax.device_put(jnp.int32(0), shardings.guard.count)
            window = dataclasses.replace(window, count=count)
        number = jax.device_put(jnp.int32(last), shardings.step)
        return dataclasses.replace(state, step=number, guard=window)

    def leave_out(self, after_step: int, roll: RollBack) -> None:
        """Leave out the steps after a checkpoint up to and including the bad one.

        Raises FloatingPointError after too many roll-backs to one step.
        """
        rolls = 1 + sum(each.after_step == after_step for each in self._left_out)
        if rolls >= self._config.guard.most_in_a_row:
            why = (
                f"this is roll-back {rolls} to step {after_step} "
                f"(config.guard.most_in_a_row is {self._config.guard.most_in_a_row})"
            )
            raise self.make_error(roll.step, 1, roll.reason, why)
        self._left_out.append(LeftOutRange(after_step, roll.step, roll.reason))
        if self._is_writer:
            write_left_out(self._workdir, self._left_out)
        self._screen.print(
            f"back at the weights of step {after_step:,}; steps {after_step + 1:,} to "
            f"{roll.step:,} are skipped, the run resumes with step {roll.step + 1:,}",
            BAD,
        )

    def report_bad(self, step: int, numbers: Mapping[str, float], usual: np.ndarray) -> None:
        """Report and record a bad step; `usual` is the float32[4] of its guard.Verdict.

        Raises FloatingPointError if the run must stop, and RollBack if it must roll back.
        """
        self._progress.skipped_steps += 1
        self._progress.bad_in_a_row += 1
        config = self._config.guard
        line = make_record(self._config, self._feed, step, numbers, usual)
        words = f"{line['reason']} ({self._describe_rows(step, step)})"
        self._screen.print(f"step {step:,} changes nothing: {words}", BAD)
        if self._is_writer:
            append_record(self._workdir / BAD_STEPS, line)
        if config.action == "roll_back":
            raise RollBack(step, line["reason"])
        if config.action == "stop":
            raise self.make_error(step, 1, line["reason"], "config.guard.action is 'stop'")
        if self._progress.bad_in_a_row >= config.most_in_a_row:
            why = f"config.guard.most_in_a_row is {config.most_in_a_row}"
            raise self.make_error(step, self._progress.bad_in_a_row, line["reason"], why)

    def make_error(self, step: int, many: int, reason: str, why: str) -> FloatingPointError:
        """Build the error for `many` bad steps, up to `step`; `why` says why the run stops."""
        first = step - many + 1
        steps = f"step {step} was bad" if many == 1 else f"steps {first} to {step} were bad"
        last = "" if many == 1 else " at the last"
        rows = self._describe_rows(first, step)
        if isinstance(self._config, Config):  # replay reads runs of pre-training alone
            command = f"{find_python()} -m bert_jax.replay --workdir={shlex.quote(self._address)}"
            rows += f"; `{command} --step={step}` shows the text of a step"
        return FloatingPointError(
            f"{steps} ({reason}{last}) and {why}: the run stops. The rows are {rows}. Lower "
            "config.optim.learning_rate, warm up longer, or change config.guard, and start again"
        )

    def _describe_rows(self, first_step: int, last_step: int) -> str:
        """Describe the rows of a range of steps, phase by phase."""
        words = []
        for index, phase in enumerate(self._config.phases):
            start = config_lib.phase_start(self._config, index)
            first, last = max(first_step, start + 1), min(last_step, start + phase.steps)
            if first <= last:
                rows = [self._feed.locate_step(step).positions_B for step in (first, last)]
                words.append(f"rows {rows[0][0]:,} to {rows[1][-1]:,} of phase {index}'s stream")
        return " and ".join(words)


def make_record(
    config: RunConfig, feed: Feed, step: int, numbers: Mapping[str, float], usual: np.ndarray
) -> dict[str, Any]:
    """Build the record of a bad step: reason, metrics, their usual values, and its rows."""
    rows = feed.locate_step(step)
    measured = {
        "loss": metrics.compute_means(metrics.add_step({}, numbers))["loss"],
        "grad_norm": numbers["grad_norm"],
    }
    values = {
        name: {"value": value, "mean": mean, "deviation": deviation}
        for (name, value), (mean, deviation) in zip(
            measured.items(), np.reshape(usual, (2, 2)).tolist(), strict=True
        )
    }
    reason = _find_reason(numbers, values)
    for entry in values.values():
        if not math.isfinite(entry["value"]):  # JSON has no NaN or Infinity
            entry["value"] = str(entry["value"])
    epochs = []
    for store, epoch in sorted({*zip(rows.store_B.tolist(), rows.epoch_B.tolist(), strict=True)}):
        index_N = rows.index_B[(rows.store_B == store) & (rows.epoch_B == epoch)]
        ends = {"first_index": int(index_N[0]), "last_index": int(index_N[-1])}
        origin = {"store": store} if rows.store_B.any() else {}
        epochs.append({**origin, "epoch": epoch, **ends})
    first, last = int(rows.positions_B[0]), int(rows.positions_B[-1])
    return {
        "step": step,
        "phase": config_lib.phase_of_step(config, step),
        "reason": reason,
        **values,
        "rows": {"first": first, "last": last, "epochs": epochs},
    }


def _find_reason(numbers: Mapping[str, float], values: Mapping[str, dict[str, Any]]) -> str:
    for name, number in numbers.items():
        if not math.isfinite(number):
            return f"{name.removesuffix('_sum').replace('/', '_')} is {number}"  # mlm_loss
    deviations = {
        name: (entry["value"] - entry["mean"]) / max(entry["deviation"], 1e-30)
        for name, entry in values.items()
    }
    name = max(deviations, key=deviations.__getitem__)
    value, mean = values[name]["value"], values[name]["mean"]
    return f"{name} is {value:.4g}, {deviations[name]:.1f} deviations above {mean:.4g}"


@dataclasses.dataclass(frozen=True)
class LeftOutRange:
    """Hold the steps left out after a checkpoint, up to and including a bad step."""

    after_step: int
    through_step: int
    reason: str


def read_left_out(workdir: pathlib.Path) -> list[LeftOutRange]:
    """Read the ranges of steps that a run left out, oldest first; DamagedFile if damaged."""
    path = workdir / LEFT_OUT
    if not path.exists() and not path.is_symlink():
        return []
    try:
        ranges = small_files.parse_json(small_files.read_bytes(path, workdir), path)
        return parse_record(ranges, list[LeftOutRange], path)
    except DamagedFile as error:
        hint = "put the file of this run back, or give another --workdir"
        raise DamagedFile(f"{error}; {hint}") from None


def write_left_out(workdir: pathlib.Path, ranges: Sequence[LeftOutRange]) -> None:
    """Write the ranges of steps that a run left out."""
    write_json(workdir / LEFT_OUT, [dataclasses.asdict(each) for each in ranges])
