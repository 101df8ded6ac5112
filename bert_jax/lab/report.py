"""Report a study: the table on the terminal, study.md, study.json and study.png."""

import collections
import dataclasses
import itertools
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import rich.table
import rich.text
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.lab.kinds import OWN_MEASURES
from bert_jax.lab.row_kind import COMMON
from bert_jax.lab.study import RowResult
from bert_jax.logging import plots
from bert_jax.logging.statistics import (
    CONFIDENCE,
    Interval,
    compare_paired,
    describe_mean,
    summarize_values,
)
from data_pipeline.cli.terminal import make_table
from data_pipeline.io.atomic import write_file, write_json

NUMBERS, PAGE, PICTURE = "study.json", "study.md", "study.png"
_PANELS = 3  # panels per line of the picture
_LOWER_IS_BETTER = ("loss", "perplexity")  # ends of the names of such measures


class Report:
    """Hold the results of a study, and the differences between its rows."""

    def __init__(self, results: Sequence[RowResult], paper: str, reference: str = "") -> None:
        """Compare all rows with each other; tables show differences from the reference row.

        paper is the head of the column of the paper's figures, "" for none. The reference is the
        first row by default.
        """
        self.results, self.paper = results, paper
        self.reference = reference or results[0].row.name
        measures = dict.fromkeys(m for result in results for m in result.scores)
        # Measures of all rows come first, measures of single objectives last.
        self.measures = sorted(measures, key=lambda m: (m not in COMMON, m in OWN_MEASURES))
        # Differences ours - theirs over the seeds that both rows have, as in study.json.
        self.differences = [
            {
                "measure": measure,
                "ours": ours.row.name,
                "theirs": theirs.row.name,
                "interval": dataclasses.asdict(interval),
                "is_beyond_chance": interval.is_beyond_chance,
            }
            for measure in self.measures
            for theirs, ours in itertools.combinations(results, 2)
            if (interval := _compare(ours, theirs, measure)) is not None
        ]

    def means(self) -> list[list[str]]:
        """Return the table of means, head first."""
        lines = [["row", "seeds", *self.measures, *([self.paper] if self.paper else [])]]
        for result in self.results:
            failed = f", {len(result.errors)} failed" if result.errors else ""
            cells = [result.row.name, f"{len(result.seeds)}{failed}"]
            for measure in self.measures:
                values = list(result.scores.get(measure, {}).values())
                cells.append(_describe_values(values))
            lines.append([*cells, *([result.row.paper] if self.paper else [])])
        return lines

    def comparison(self) -> list[list[str]]:
        """Return the table of differences from the reference, head first; [] if there are none.

        Differences larger than chance are bold in Markdown.
        """
        (reference,) = (each for each in self.results if each.row.name == self.reference)
        rows = {
            result.row.name: {m: _compare(result, reference, m) for m in self.measures}
            for result in self.results
            if result is not reference
        }
        measures = [m for m in self.measures if any(row[m] for row in rows.values())]
        lines = [
            [name, *(_describe_interval(row[m]) for m in measures)]
            for name, row in rows.items()
            if any(row.values())
        ]
        return [[f"minus {self.reference}", *measures], *lines] if lines else []

    def notes(self) -> list[str]:
        """Describe how many differences are larger than chance, missing scores and failed runs."""
        beyond = sum(bool(each["is_beyond_chance"]) for each in self.differences)
        chance = (
            f"Larger than chance (paired by seed, {CONFIDENCE:.0%}, each alone): {beyond} of "
            f"{len(self.differences)} differences, bold above; {NUMBERS} has the differences of "
            "all rows."
        )
        if not self.differences:
            chance = "No two rows share two seeds, so no difference is tested."
        lacking = collections.defaultdict[tuple[str, str], list[str]](list)
        for result in self.results:
            for reason in dict.fromkeys(result.missing.values()):
                lacked = (name for name, why in result.missing.items() if why == reason)
                lacking[", ".join(lacked), reason].append(result.row.name)
        reasons = [
            f"No {names} of {', '.join(rows)}: {reason}."
            for (names, reason), rows in lacking.items()
        ]
        own = [
            f"{measure}: of the rows that {OWN_MEASURES[measure]}."
            for measure in self.measures
            if measure in OWN_MEASURES
        ]
        failed = [
            f"{result.row.name} failed, {error}"
            for result in self.results
            for error in result.errors
        ]
        return [chance, *own, *reasons, *failed]

    def tables(self) -> list[rich.table.Table]:
        """Build the tables for the terminal: means, and differences if there are any."""
        tables = []
        for header, *lines in filter(None, (self.means(), self.comparison())):
            heads = [name.replace("_", " ") for name in header]  # may break between words
            tables.append(make_table(heads, [[*map(_to_text, cells)] for cells in lines]))
        return tables

    def numbers(self) -> dict[str, Any]:
        """Return the content of study.json."""
        rows = []
        for result in self.results:
            measures = {}
            for measure, values in result.scores.items():
                mean, deviation = summarize_values(list(values.values()))
                measures[measure] = {
                    "mean": mean,
                    "standard_deviation": deviation,
                    "by_seed": {str(seed): values[seed] for seed in sorted(values)},
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
        return {"rows": rows, "differences": self.differences, "paper": self.paper}

    def page(self) -> str:
        """Return the content of study.md."""
        tables = [_to_markdown(table) for table in (self.means(), self.comparison()) if table]
        picture = f"![]({PICTURE})\n" if self.measures else ""
        return "\n\n".join(["# Study", *tables, *self.notes(), picture])

    def picture(self) -> Figure:
        """Draw a panel for each measure: mean, deviation and runs of each row.

        A dotted line marks the mean of the reference. A measure that only one row has is skipped,
        unless all measures are like that.
        """
        counts = {m: sum(m in result.scores for result in self.results) for m in self.measures}
        measures = [m for m in self.measures if counts[m] > 1] or self.measures
        names = [result.row.name for result in self.results]
        columns = min(len(measures), _PANELS)
        lines = -(-len(measures) // columns)
        size = (1.8 + 2.7 * columns, lines * (1.1 + 0.3 * len(names)))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(lines, columns, sharey=True, squeeze=False).flat
        for axes, measure in itertools.zip_longest(panels, measures):
            if measure is None:
                axes.set_axis_off()
            else:
                self._draw(axes, measure)
                axes.set_yticks(range(len(names)), names, parse_math=False)
                axes.set_ylim(len(names) - 0.5, -0.5)
        return figure

    def _draw(self, axes: Axes, measure: str) -> None:
        for place, result in enumerate(self.results):
            values = list(result.scores.get(measure, {}).values())
            if not values:
                continue
            mean, deviation = summarize_values(values)
            axes.scatter(values, [place] * len(values), s=14, color=plots.TRAIN, alpha=0.4)
            axes.errorbar(
                mean, place, xerr=deviation or 0.0, color=plots.TRAIN, marker="o", capsize=3
            )
            if result.row.name == self.reference:
                axes.axvline(mean, color=plots.GRAY, linestyle=":", linewidth=1)
        is_lower_better = measure.endswith(_LOWER_IS_BETTER)
        axes.set_title(measure.replace("_", " "), fontsize=9, parse_math=False)
        axes.set_xlabel("lower is better" if is_lower_better else "higher is better", fontsize=8)
        axes.locator_params(axis="x", nbins=4)


def write(folder: pathlib.Path, report: Report) -> list[str]:
    """Write study.md and study.json, and study.png if there is a score; return their names."""
    write_json(folder / NUMBERS, report.numbers())
    write_file(folder / PAGE, report.page().encode())
    if not report.measures:
        return [PAGE, NUMBERS]
    plots.save(folder / PICTURE, report.picture)
    return [PAGE, NUMBERS, PICTURE]


def _compare(ours: RowResult, theirs: RowResult, measure: str) -> Interval | None:
    first, second = ours.scores.get(measure, {}), theirs.scores.get(measure, {})
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return None
    return compare_paired([first[s] for s in seeds], [second[s] for s in seeds])


def _describe_values(values: Sequence[float]) -> str:
    return describe_mean(values, _choose_decimals(statistics.fmean(values))) if values else "-"


def _describe_interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    digits = _choose_decimals(max(abs(interval.mean), interval.half_width))
    text = interval.describe(digits)
    return f"**{text}**" if interval.is_beyond_chance else text


def _choose_decimals(value: float) -> int:
    """Return the number of decimals, at most 6, that shows about four digits of a value, or two."""
    if 0 < abs(value) < 0.01:
        return min(1 - math.floor(math.log10(abs(value))), 6)
    return 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1


def _to_markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *rest = lines
    ruled = [header, ["---"] * len(header), *rest]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in ruled)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def _to_text(cell: str) -> rich.text.Text:
    """Convert bold Markdown to bold text of the terminal."""
    is_bold = cell.startswith("**") and cell.endswith("**")
    return rich.text.Text(cell[2:-2], "bold") if is_bold else rich.text.Text(cell)
