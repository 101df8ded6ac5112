"""Report a study: the table on the terminal, study.md, study.json and study.png."""

import dataclasses
import io
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import rich.box
import rich.table
from matplotlib import style
from matplotlib.figure import Figure

from bert_jax.reporting import plots
from bert_jax.studies.kinds import OWN_MEASURES
from bert_jax.studies.row_kind import COMMON
from bert_jax.studies.runner import Result
from bert_jax.studies.statistics import (
    CONFIDENCE,
    Interval,
    mean_and_deviation,
    paired_difference,
)
from data_pipeline.io.atomic import write_file, write_json

NUMBERS, PAGE, PICTURE = "study.json", "study.md", "study.png"


@dataclasses.dataclass(frozen=True)
class Difference:
    """A row less another one in a measure, over the seeds that both have."""

    measure: str
    ours: str
    theirs: str
    interval: Interval

    def in_words(self) -> str:
        return (
            f"{self.measure}: {self.ours} - {self.theirs} = {self.interval.mean:+.4f} "
            f"± {self.interval.half_width:.4f}"
        )


class Report:
    """Hold the table of a study and its comparisons."""

    def __init__(self, results: Sequence[Result], paper: str) -> None:
        self.results, self.paper = results, paper
        measures = dict.fromkeys(m for result in results for m in result.scores)
        # What all rows share comes first, the measures of single objectives last.
        self.measures = sorted(measures, key=lambda m: (m not in COMMON, m in OWN_MEASURES))
        self.differences = [
            Difference(measure, ours.row.name, theirs.row.name, interval)
            for measure in self.measures
            for theirs, ours in itertools.combinations(results, 2)
            if (interval := _difference(ours, theirs, measure)) is not None
        ]

    def header(self) -> list[str]:
        """Return the heads of the columns."""
        return ["row", "seeds", *self.measures, *([self.paper] if self.paper else [])]

    def cells(self, result: Result) -> list[str]:
        """Return the cells of a row."""
        failed = f", {len(result.errors)} failed" if result.errors else ""
        cells = [result.row.name, f"{len(result.seeds)}{failed}"]
        for measure in self.measures:
            values = list(result.scores.get(measure, {}).values())
            cells.append(_in_words(values) if values else "-")
        return [*cells, *([result.row.paper] if self.paper else [])]

    def notes(self) -> list[str]:
        """Say what is larger than chance, what has no score and why, and what failed."""
        beyond = [d.in_words() for d in self.differences if d.interval.is_beyond_chance]
        total = len(self.differences)
        if not total:
            chance = "No two rows share two seeds, so nothing is said about chance."
        else:
            listed = ": " + "; ".join(beyond) if beyond else ""
            chance = (
                f"Larger than chance (paired by seed, {CONFIDENCE:.0%}, each alone): "
                f"{len(beyond)} of {total} differences{listed}."
            )
        lacking: dict[tuple[str, str], list[str]] = {}
        for result in self.results:
            measures: dict[str, list[str]] = {}
            for measure, reason in result.missing.items():
                measures.setdefault(reason, []).append(measure)
            for reason, lacked in measures.items():
                lacking.setdefault((", ".join(lacked), reason), []).append(result.row.name)
        reasons = [
            f"No {names} of {', '.join(rows)}: {reason}."
            for (names, reason), rows in lacking.items()
        ]
        own = [
            f"{measure}: only of rows that {OWN_MEASURES[measure]}."
            for measure in self.measures
            if measure in OWN_MEASURES
        ]
        failed = [
            f"{result.row.name} failed, {error}"
            for result in self.results
            for error in result.errors
        ]
        return [chance, *own, *reasons, *failed]

    def table(self) -> rich.table.Table:
        """Build the table of the terminal."""
        header = [name.replace("_", " ") for name in self.header()]  # breaks between words
        table = rich.table.Table(*header, box=rich.box.SIMPLE)
        for result in self.results:
            table.add_row(*self.cells(result))
        return table

    def numbers(self) -> dict[str, Any]:
        """Return study.json."""
        rows = []
        for result in self.results:
            measures = {}
            for measure, values in result.scores.items():
                mean, deviation = mean_and_deviation(list(values.values()))
                measures[measure] = {
                    "mean": mean,
                    "standard_deviation": deviation,
                    "by_seed": {str(seed): value for seed, value in values.items()},
                }
            rows.append(
                {
                    "name": result.row.name,
                    "seeds": sorted(result.seeds),
                    "measures": measures,
                    "missing": result.missing,
                    "errors": result.errors,
                    "paper": result.row.paper,
                }
            )
        differences = [
            dataclasses.asdict(d) | {"is_beyond_chance": d.interval.is_beyond_chance}
            for d in self.differences
        ]
        return {"rows": rows, "differences": differences, "paper": self.paper}

    def page(self) -> str:
        """Return study.md."""
        lines = [self.header(), ["---"] * len(self.header())]
        lines += [self.cells(result) for result in self.results]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return "\n\n".join(["# Study", table, *self.notes(), f"![]({PICTURE})\n"])

    def picture(self) -> Figure:
        """Draw a panel for each measure: a row's mean, its standard deviation and its runs."""
        count, names = len(self.measures), [result.row.name for result in self.results]
        size = (2.0 + 2.9 * count, 1.3 + 0.42 * len(names))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
        for axes, measure in zip(panels, self.measures, strict=True):
            for place, result in enumerate(self.results):
                values = list(result.scores.get(measure, {}).values())
                if not values:
                    continue
                mean, deviation = mean_and_deviation(values)
                axes.scatter(values, [place] * len(values), s=14, color=plots.TRAIN, alpha=0.4)
                axes.errorbar(
                    mean, place, xerr=deviation or 0.0, color=plots.TRAIN, marker="o", capsize=3
                )
            axes.set_title(measure.replace("_", " "), fontsize=9)
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.locator_params(axis="x", nbins=4)
        return figure


def write(folder: pathlib.Path, report: Report) -> None:
    """Write study.json and study.md, and study.png if there is a score."""
    write_json(folder / NUMBERS, report.numbers())
    write_file(folder / PAGE, report.page().encode())
    if report.measures:
        picture = io.BytesIO()
        with style.context(["default", plots.LOOK]):
            report.picture().savefig(picture, format="png")
        write_file(folder / PICTURE, picture.getvalue())


def _difference(ours: Result, theirs: Result, measure: str) -> Interval | None:
    first, second = ours.scores.get(measure, {}), theirs.scores.get(measure, {})
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return None
    return paired_difference([first[s] for s in seeds], [second[s] for s in seeds])


def _in_words(values: Sequence[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"
