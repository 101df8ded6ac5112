"""The runs of a grid: learning rates x epochs x seeds, one process after another, each in a folder.

A run that has left its summary and its predictions is finished and never started again, so a grid
that was stopped goes on where it was. One that fails is noted, and the next one begins.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.exit_codes import BY_SIGNAL, DONE
from bert_jax.log import METRICS, PREDICTIONS, SUMMARY
from bert_jax.record_files import read_metrics
from data_pipeline import small_files

_SHOWN_EVERY_SECS = 1.0
Show = Callable[[], None]
_HELDOUT, _MAJORITY, _DEV = "heldout_", "majority_", "dev"


@dataclasses.dataclass(frozen=True)
class Run:
    """One fine-tuning run of the grid."""

    learning_rate: float
    epochs: float
    seed: int  # of the task's layer, of dropout and of the order of examples

    @property
    def name(self) -> str:
        """Its folder in the grid's."""
        return f"rate{in_short(self.learning_rate)}_epochs{self.epochs:g}_seed{self.seed}"

    @property
    def flags(self) -> list[str]:
        """What sets it apart from the others."""
        return [
            f"--config.optim.learning_rate={self.learning_rate!r}",
            f"--config.epochs={self.epochs!r}",
            f"--config.seed={self.seed}",
            f"--config.data.order_seed={self.seed}",
        ]

    def in_words(self) -> str:
        """For the screen."""
        epochs = f"{self.epochs:g} epoch{'s' * (self.epochs != 1)}"
        return f"rate {in_short(self.learning_rate)}, {epochs}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    run: Run
    scores: Mapping[str, float]  # of the development sets by name; none where it failed
    baseline: Mapping[str, float]  # by the same names, what knowing nothing of the text scores
    error: str = ""  # why it failed, or was not run yet

    @property
    def is_finished(self) -> bool:
        return bool(self.scores)


def all_runs(rates: Sequence[float], epochs: Sequence[float], seeds: Sequence[int]) -> list[Run]:
    """Every combination; all seeds of a setting follow each other."""
    return [Run(*values) for values in itertools.product(rates, epochs, seeds)]


def in_short(rate: float) -> str:
    """5e-5 for 0.00005."""
    digits, exponent = f"{rate:.6e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def outcome(folder: pathlib.Path, run: Run, error: str = "not run yet") -> Outcome:
    """What a run has left in the grid's folder.

    Raises:
      ValueError: its summary is not one of fine-tuning.
    """
    path = folder / run.name / SUMMARY
    if not path.is_file() or not (path.parent / PREDICTIONS).is_dir():
        return Outcome(run, {}, {}, error)
    try:
        summary = small_files.read_object(path, folder)
        scores = _of_dev(summary, _HELDOUT) or _of_dev(summary, "")
    except ValueError as error_of_json:
        raise ValueError(
            f"{path} is not the summary of a run ({error_of_json}); delete {path.parent} to have "
            "it run again"
        ) from error_of_json
    if not scores:
        raise ValueError(
            f"{path} has no scores of a development set; is {path.parent} a run of something else? "
            "Give another --workdir"
        )
    return Outcome(run, scores, _of_dev(summary, _MAJORITY))


def _of_dev(summary: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in summary.items()
        if name.startswith(f"{prefix}{_DEV}") and isinstance(value, int | float)
    }


def main_score(outcomes: Sequence[Outcome], asked: str = "") -> str:
    """The score that the grid is about: the one asked for, or the first that has a baseline.

    A task gives its baseline in the order of its scores, the one that decides first.

    Raises:
      ValueError: the runs have no score of this name.
    """
    finished = next(one for one in outcomes if one.is_finished)
    names = [name for name in finished.scores if not name.endswith("_loss")]
    if asked and asked not in names:
        raise ValueError(f"--score is {asked!r}; the scores of these runs are {', '.join(names)}")
    return asked or next((name for name in finished.baseline if name in names), names[0])


def carry_out(
    command: Sequence[str], output: pathlib.Path, environment: Mapping[str, str], show: Show
) -> str:
    """Run a command, its output added to a file; why it failed, "" if it did not.

    show is called every second. Whatever ends this process ends that one first, which then saves.
    """
    with output.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to it once, from here
            env={**os.environ, **environment},
        )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(_SHOWN_EVERY_SECS)
                break
            show()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    return "" if code == DONE else f"exit code {code}: {_last_words(output)}"


@contextlib.contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Have SIGTERM end this process as an exception does, so that the run under way is ended."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(BY_SIGNAL + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _last_words(output: pathlib.Path) -> str:
    """The last line of a log that says what went wrong, or its last line."""
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = (line for line in reversed(lines) if line.startswith("error"))
    return next(said, lines[-1] if lines else f"{output} is empty")


def last_step(workdir: pathlib.Path) -> int:
    """The last step that a run wrote down, 0 before that."""
    try:
        lines = read_metrics(workdir / METRICS)
    except ValueError:
        return 0
    return int(lines[-1]["step"]) if lines else 0
