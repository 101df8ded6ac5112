"""Name the runs of a grid (learning rates x epochs x seeds) and read what each has left.

A run that has left its summary and its predictions is finished and never started again, so a
stopped grid resumes where it was.
"""

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.logging.console import Screen, duration
from bert_jax.logging.metrics_writer import METRICS, PREDICTIONS, SUMMARY
from bert_jax.runtime.exit_codes import DONE
from bert_jax.runtime.workdir import COMPILED
from data_pipeline.cli import child_process
from data_pipeline.io import small_files
from data_pipeline.io.jsonl import read_metrics
from data_pipeline.io.refused import Refused

NUMBERS = "grid.json"  # the grid's table and its settings
_HELDOUT, _MAJORITY, _DEV = "heldout_", "majority_", "dev"


@dataclasses.dataclass(frozen=True)
class GridRun:
    """Name a fine-tuning run of the grid by the settings that differ between runs."""

    learning_rate: float
    epochs: float
    seed: int  # of the task's layer, of dropout and of the order of examples

    @property
    def name(self) -> str:
        """Return the name of its folder in the grid's."""
        return f"rate{format_rate(self.learning_rate)}_epochs{self.epochs:g}_seed{self.seed}"

    @property
    def flags(self) -> list[str]:
        """Return its flags that differ between runs."""
        return [
            f"--config.optim.learning_rate={self.learning_rate!r}",
            f"--config.epochs={self.epochs!r}",
            f"--config.seed={self.seed}",
            f"--config.data.order_seed={self.seed}",
        ]

    def in_words(self) -> str:
        """Describe it for the screen."""
        return f"{describe_setting(self.learning_rate, self.epochs)}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class GridOutcome:
    """Hold the scores of a finished run, or why it has none."""

    run: GridRun
    scores: Mapping[str, float]  # of the development sets by name; none where it failed
    baseline: Mapping[str, float]  # by the same names: scored without reading the text
    error: str = ""  # why it failed, or was not run yet

    @property
    def is_finished(self) -> bool:
        return bool(self.scores)


def all_runs(
    rates: Sequence[float], epochs: Sequence[float], seeds: Sequence[int]
) -> list[GridRun]:
    """Return every combination; the seeds of a setting follow each other."""
    return [GridRun(*values) for values in itertools.product(rates, epochs, seeds)]


def format_rate(rate: float) -> str:
    """Write 0.00005 as 5e-5."""
    digits, exponent = f"{rate:.6e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def describe_setting(learning_rate: float, epochs: float) -> str:
    """Write a setting as "rate 5e-5, 3 epochs"."""
    return f"rate {format_rate(learning_rate)}, {epochs:g} epoch{'s' * (epochs != 1)}"


def read_outcome(folder: pathlib.Path, run: GridRun, error: str = "not run yet") -> GridOutcome:
    """Read what a run has left in the grid's folder; error is why it may not be finished."""
    left = read_scores(folder / run.name)
    return GridOutcome(run, {}, {}, error) if left is None else GridOutcome(run, *left)


def read_scores(workdir: pathlib.Path) -> tuple[dict[str, float], dict[str, float]] | None:
    """Return scores and baselines of a finished fine-tuning; None of one that is not."""
    path = workdir / SUMMARY
    if not path.is_file() or not (workdir / PREDICTIONS).is_dir():
        return None
    try:
        summary = small_files.read_object(path, workdir.parent)
    except Refused as error_of_json:
        raise Refused(
            f"{path} is not the summary of a run ({error_of_json}); delete {path.parent} to have "
            "it run again"
        ) from error_of_json
    scores = _dev_scores(summary, _HELDOUT) or _dev_scores(summary, "")
    if not scores:
        raise Refused(
            f"{path} has no scores of a development set; is {path.parent} another kind of run? "
            "Give another --workdir"
        )
    return scores, _dev_scores(summary, _MAJORITY)


def _dev_scores(summary: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in summary.items()
        if name.startswith(f"{prefix}{_DEV}") and isinstance(value, int | float)
    }


def main_score(outcomes: Sequence[GridOutcome], requested: str = "") -> str:
    """Name the score that decides: the requested one, or the first that has a baseline.

    A task lists its baseline in the order of its scores, the deciding one first.
    """
    finished = next(outcome for outcome in outcomes if outcome.is_finished)
    names = [name for name in finished.scores if not name.endswith("_loss")]
    if requested and requested not in names:
        raise Refused(f"--score is {requested!r}; the scores of these runs are {', '.join(names)}")
    return requested or deciding_score(finished.scores, finished.baseline)


def deciding_score(scores: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    """Name the score that decides where none was requested."""
    names = [name for name in scores if not name.endswith("_loss")]
    return next((name for name in baseline if name in names), names[0])


def run_command(
    screen: Screen,
    label: str,
    command: Sequence[str],
    workdir: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Run a command that trains into workdir, beside which its log is kept; "" or its error.

    check is called every second; what it raises interrupts the command.
    """
    log = workdir.parent / f"{workdir.name}.log"
    began = time.monotonic()
    with screen.spinning(label) as show:

        def show_progress() -> None:
            check()
            step = last_step(workdir)
            progress = f", step {step:,}" if step else ""
            show(f"{label}{progress}, {duration(time.monotonic() - began)}")

        code = child_process.run(
            command,
            log,
            # Runs share most compiled programs: evaluation, and training with other seeds.
            {
                "JAX_COMPILATION_CACHE_DIR": str((workdir.parent / COMPILED).resolve()),
                **(environment or {}),
            },
            show_progress,
        )
    return "" if code == DONE else f"exit code {code}: {child_process.last_error(log)}"


def last_step(workdir: pathlib.Path) -> int:
    """Return the last step that a run has logged, 0 before that."""
    try:
        lines = read_metrics(workdir / METRICS)
    except ValueError:
        return 0
    return int(lines[-1]["step"]) if lines else 0
