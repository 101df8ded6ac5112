"""What a grid of runs found: mean and spread of each setting, as a table and as numbers."""

import dataclasses
import itertools
import json
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import rich.box
import rich.table
import rich.text

from bert_jax.grid_runs import Outcome, in_short
from bert_jax.record_files import write_whole
from bert_jax.screen import BAD, FAINT, GOOD

NUMBERS, PICTURE = "grid.json", "grid.png"
_NAMED_TIES = 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """The finished runs of a learning rate and a number of epochs, over their seeds."""

    learning_rate: float
    epochs: float
    outcomes: tuple[Outcome, ...]

    def values(self, score: str) -> list[float]:
        """A score of each."""
        return [one.scores[score] for one in self.outcomes]

    def mean(self, score: str) -> float:
        return statistics.fmean(self.values(score))

    def deviation(self, score: str) -> float | None:
        """The standard deviation of a sample, N - 1 below; None of fewer than two runs."""
        return statistics.stdev(self.values(score)) if len(self.outcomes) > 1 else None

    def in_words(self, score: str) -> str:
        """Its mean and spread."""
        deviation = self.deviation(score)
        spread = "" if deviation is None else f" ± {deviation:.4f}"
        return f"{self.mean(score):.4f}{spread}"


def settings(outcomes: Sequence[Outcome]) -> list[Setting]:
    """Settings with a finished run, the highest rate first, and of each the fewest epochs."""

    def of(one: Outcome) -> tuple[float, float]:
        return -one.run.learning_rate, one.run.epochs

    finished = sorted((one for one in outcomes if one.is_finished), key=of)
    return [
        Setting(-rate, epochs, tuple(group))
        for (rate, epochs), group in itertools.groupby(finished, key=of)
    ]


def best_setting(found: Sequence[Setting], score: str) -> Setting:
    """The one of the highest mean, among those with the most seeds."""
    most = max(len(one.outcomes) for one in found)
    return max((one for one in found if len(one.outcomes) == most), key=lambda s: s.mean(score))


def ties(found: Sequence[Setting], best: Setting, score: str) -> list[Setting]:
    """List the settings of as many seeds that differ from the best by no more than seeds do.

    That is the larger of the two standard deviations; of single runs nothing is known but equality.
    """
    return [
        one
        for one in found
        if one is not best
        and len(one.outcomes) == len(best.outcomes)
        and best.mean(score) - one.mean(score)
        <= max(best.deviation(score) or 0.0, one.deviation(score) or 0.0)
    ]


def beats(best: Setting, score: str, baseline: float | None) -> bool:
    """Whether a setting's mean is above what knowing nothing of the text scores."""
    return baseline is None or best.mean(score) > baseline


def best_run(found: Sequence[Setting], score: str) -> Outcome:
    """The one run of the highest score."""
    return max((one for s in found for one in s.outcomes), key=lambda one: one.scores[score])


def table(outcomes: Sequence[Outcome], score: str) -> rich.table.Table:
    """A line a setting, the best one marked where it is better than the baseline."""
    found, baseline = settings(outcomes), baseline_of(outcomes, score)
    best = best_setting(found, score)
    is_better = beats(best, score, baseline)
    shown = rich.table.Table(box=rich.box.SIMPLE)
    for column in ("learning rate", "epochs", "runs", "mean", "spread", "lowest", "highest"):
        shown.add_column(column, justify="right")
    for one in found:
        deviation, values = one.deviation(score), one.values(score)
        planned = sum(
            other.run.learning_rate == one.learning_rate and other.run.epochs == one.epochs
            for other in outcomes
        )
        runs = f"{len(values)}" if planned == len(values) else f"{len(values)} of {planned}"
        shown.add_row(
            in_short(one.learning_rate),
            f"{one.epochs:g}",
            rich.text.Text(runs, "" if planned == len(values) else BAD),
            f"{one.mean(score):.4f}",
            "" if deviation is None else f"{deviation:.4f}",
            f"{min(values):.4f}",
            f"{max(values):.4f}",
            style=f"bold {GOOD}" if one is best and is_better else "",
        )
    if baseline is not None:
        cells = [f"{baseline:.4f}", "", "", ""]
        shown.add_row("baseline", "", "", *cells, style=FAINT)
    return shown


def closing_rows(
    folder: pathlib.Path, outcomes: Sequence[Outcome], score: str
) -> list[tuple[str, str]]:
    """Labels and texts: the best setting with all its scores, the best run and where it lies."""
    found = settings(outcomes)
    best, first = best_setting(found, score), best_run(found, score)
    seeds = f"{len(best.outcomes)} seed{'s' * (len(best.outcomes) > 1)}"
    rows = [
        ("best", f"{_named(best)}, the mean of {seeds}"),
        ("", f"{score} {best.in_words(score)}"),
    ]
    baseline = baseline_of(outcomes, score)
    if not beats(best, score, baseline):
        rows[0] = ("best", f"none: no mean is above the baseline, {baseline:.4f}")
        rows[1] = ("highest", f"{score} {best.in_words(score)}: {_named(best)}, {seeds}")
    if tied := ties(found, best, score):
        names = "; ".join(map(_named, tied[:_NAMED_TIES]))
        more = f"; and {len(tied) - _NAMED_TIES} more" if len(tied) > _NAMED_TIES else ""
        rows.append(("", f"no better than its seeds differ: {names}{more}"))
    others = [
        name for name in best.outcomes[0].scores if name != score and not name.endswith("_loss")
    ]
    rows += [("", f"{name} {best.in_words(name)}") for name in others]
    rows += [
        ("best run", f"{score} {first.scores[score]:.4f}: {first.run.in_words()}"),
        ("", str(folder / first.run.name)),
        ("picture", str(folder / PICTURE)),
        ("numbers", str(folder / NUMBERS)),
    ]
    return rows


def _named(one: Setting) -> str:
    epochs = f"{one.epochs:g} epoch{'s' * (one.epochs != 1)}"
    return f"rate {in_short(one.learning_rate)}, {epochs}"


def write_numbers(
    folder: pathlib.Path, outcomes: Sequence[Outcome], score: str, config: dict[str, Any]
) -> None:
    """Write grid.json; without a finished run there are no settings and no best one in it."""
    found, baseline = settings(outcomes), baseline_of(outcomes, score)
    best = best_setting(found, score) if found else None
    numbers: dict[str, Any] = {
        "score": score,
        "baseline": baseline,
        "settings": [_numbers_of(one, score) for one in found],
        "best": _numbers_of(best, score) if best else None,
        "best_beats_baseline": beats(best, score, baseline) if best else None,
        "ties_with_best": [_numbers_of(one, score) for one in ties(found, best, score)]
        if best
        else [],
        "best_run": best_run(found, score).run.name if found else None,
        "runs": [
            {
                "name": one.run.name,
                **dataclasses.asdict(one.run),
                "scores": dict(one.scores),
                "error": one.error,
            }
            for one in outcomes
        ],
        "config": config,
    }
    write_whole(folder / NUMBERS, (json.dumps(numbers, indent=2) + "\n").encode())


def _numbers_of(one: Setting, score: str) -> dict[str, Any]:
    return {
        "learning_rate": one.learning_rate,
        "epochs": one.epochs,
        "runs": len(one.outcomes),
        "mean": one.mean(score),
        "standard_deviation": one.deviation(score),
        "lowest": min(one.values(score)),
        "highest": max(one.values(score)),
    }


def baseline_of(outcomes: Sequence[Outcome], score: str) -> float | None:
    """What knowing nothing of the text scores, where a run says so."""
    return next((one.baseline[score] for one in outcomes if score in one.baseline), None)
