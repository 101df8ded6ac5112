"""Bad steps on the host: each said, written to bad_steps.jsonl, and what becomes of the run."""

import math
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import metrics, processes
from bert_jax.clock import Progress
from bert_jax.log import BAD_STEPS as FILE
from bert_jax.record_files import add_line, cut_lines_after, read_lines
from bert_jax.run_feed import RunFeed
from bert_jax.screen import BAD, Screen
from data_pipeline import small_files
from data_pipeline.interpreter import python


def read(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Read the bad steps that a run wrote down, none without a file.

    Raises:
      DamagedFile: names the line that is not one of these.
    """
    path = workdir / FILE
    lines = read_lines(path)
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
    """A bad step came where config.guard.action is roll_back."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step, self.reason = step, reason


class BadSteps:
    """The bad steps of a run, told in the order of their steps; process 0 writes them down."""

    def __init__(
        self,
        workdir: pathlib.Path,
        address: str,
        feed: RunFeed,
        screen: Screen,
        progress: Progress,
    ) -> None:
        """address is what a person calls the workdir."""
        self._workdir, self._config, self._feed = workdir, feed.config, feed
        self._address = address
        self._screen, self._progress = screen, progress
        self._is_writer = processes.number() == 0

    def cut_after(self, step: int) -> None:
        """Cut the lines of later steps off, which will be done again."""
        if self._is_writer and (self._workdir / FILE).exists():
            cut_lines_after(self._workdir / FILE, step)

    def good(self) -> None:
        """A step was good."""
        self._progress.bad_in_a_row = 0

    def bad(self, step: int, numbers: Mapping[str, float], usual: np.ndarray) -> None:
        """A step was bad; usual is what its verdict says of the window.

        Raises:
          FloatingPointError: the run is to stop here.
          RollBack: it is to go back to a checkpoint.
        """
        self._progress.skipped_steps += 1
        self._progress.bad_in_a_row += 1
        config = self._config.guard
        line = record(self._feed, step, numbers, usual)
        where = self._rows(step, step)
        self._screen.say(f"step {step:,} changes nothing: {line['reason']} ({where})", BAD)
        if self._is_writer:
            add_line(self._workdir / FILE, line)
        if config.action == "roll_back":
            raise RollBack(step, line["reason"])
        if config.action == "stop":
            raise self.stop(step, 1, line["reason"], "config.guard.action is 'stop'")
        if self._progress.bad_in_a_row >= config.most_in_a_row:
            why = f"config.guard.most_in_a_row is {config.most_in_a_row}"
            raise self.stop(step, self._progress.bad_in_a_row, line["reason"], why)

    def rolled_back(self, to_step: int, step: int) -> None:
        """Say that the run went back to a checkpoint because of a bad step."""
        self._screen.say(
            f"back at the weights of step {to_step:,}; steps {to_step + 1:,} to {step:,} are left "
            f"out, the run goes on with step {step + 1:,}",
            BAD,
        )

    def check_finite(self, params_are_finite: bool, step: int) -> None:
        """Raise if parameters that are to be saved are not finite.

        Raises:
          FloatingPointError: always then.
        """
        if not params_are_finite:
            raise FloatingPointError(
                f"a parameter is not finite after step {step}, though its loss and gradient were; "
                "nothing is saved of it. Lower config.optim.learning_rate "
                f"({self._config.optim.learning_rate})"
            )

    def stop(self, step: int, many: int, reason: str, why: str) -> FloatingPointError:
        """The error that ends a run after a bad step, the last of so many in a row."""
        first = step - many + 1
        steps = f"step {step} was bad" if many == 1 else f"steps {first} to {step} were bad"
        last = "" if many == 1 else " at the last"
        directory = shlex.quote(self._address)
        return FloatingPointError(
            f"{steps} ({reason}{last}) and {why}: the run stops. "
            f"They held {self._rows(first, step)}; "
            f"`{python()} -m bert_jax.replay --workdir={directory} --step={step}` shows the text "
            "of a step. Lower config.optim.learning_rate, warm up longer, or set config.guard "
            "otherwise, and start again"
        )

    def _rows(self, first_step: int, last_step: int) -> str:
        """The rows of a stretch of steps, in each phase that it touches."""
        words = []
        for index in range(len(self._config.phases)):
            start = config_lib.phase_start(self._config, index)
            first = max(first_step, start + 1)
            last = min(last_step, start + self._config.phases[index].steps)
            if first <= last:
                rows = self._feed.positions(first)[0], self._feed.positions(last)[-1]
                words.append(f"rows {rows[0]:,} to {rows[1]:,} of phase {index}'s stream")
        return " and ".join(words)


def record(
    feed: RunFeed, step: int, numbers: Mapping[str, float], usual: np.ndarray
) -> dict[str, Any]:
    """The line of a bad step: why, its numbers beside the usual ones, and which rows it held."""
    index, positions = config_lib.phase_of_step(feed.config, step), feed.positions(step)
    loss, grad_norm = metrics.read(metrics.add({}, numbers))["loss"], numbers["grad_norm"]
    (loss_mean, loss_deviation), (norm_mean, norm_deviation) = np.reshape(usual, (2, 2)).tolist()
    values = {"loss": (loss, loss_mean, loss_deviation)}
    values["grad_norm"] = (grad_norm, norm_mean, norm_deviation)
    return {
        "step": step,
        "phase": index,
        "reason": _reason(numbers, values),
        **{
            name: {"value": _plain(value), "mean": mean, "deviation": deviation}
            for name, (value, mean, deviation) in values.items()
        },
        "rows": {
            "first": int(positions[0]),
            "last": int(positions[-1]),
            "epochs": _epochs(*feed.located(index, positions)),
        },
    }


def _reason(numbers: Mapping[str, float], values: Mapping[str, tuple[float, float, float]]) -> str:
    for name, number in numbers.items():
        if not math.isfinite(number):
            return f"{name} is {number}"

    def deviations(name: str) -> float:
        value, mean, deviation = values[name]
        return (value - mean) / max(deviation, 1e-30)

    name = max(values, key=deviations)
    value, mean, _ = values[name]
    return f"{name} is {value:.4g}, {deviations(name):.1f} deviations above {mean:.4g}"


def _plain(value: float) -> float | str:
    """JSON has no number that is not finite."""
    return value if math.isfinite(value) else str(value)


def _epochs(epoch_B: np.ndarray, index_B: np.ndarray) -> list[dict[str, int]]:
    """Rows follow each other in the stream: first and last index in each epoch they touch."""
    return [
        {
            "epoch": int(epoch),
            "first_index": int(index_B[epoch_B == epoch][0]),
            "last_index": int(index_B[epoch_B == epoch][-1]),
        }
        for epoch in np.unique(epoch_B)
    ]
