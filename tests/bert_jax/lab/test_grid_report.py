"""Means, spreads and the best of a grid by hand, its table, its numbers and its picture."""

import io
import json

import pytest
import rich.console

from bert_jax.lab import grid_report
from bert_jax.lab.grid import GridOutcome, GridRun
from bert_jax.lab.grid_report import GridComparison

SCORE = "dev_accuracy"
BASELINE = {SCORE: 0.5}


def finished(rate: float, epochs: float, seed: int, accuracy: float) -> GridOutcome:
    scores = {SCORE: accuracy, "dev_f1": accuracy / 2, "dev_loss": 1.0}
    return GridOutcome(GridRun(rate, epochs, seed), scores, BASELINE)


# Means 0.7, 0.6 and 0.9; the last has one seed, as two of its runs failed.
OUTCOMES = [
    *(finished(3e-5, 2.0, seed, accuracy) for seed, accuracy in enumerate([0.6, 0.7, 0.8])),
    *(finished(5e-5, 2.0, seed, accuracy) for seed, accuracy in enumerate([0.5, 0.55, 0.75])),
    finished(5e-5, 3.0, 0, 0.9),
    GridOutcome(GridRun(5e-5, 3.0, 1), {}, {}, "exit code 3: error: the guard"),
    GridOutcome(GridRun(5e-5, 3.0, 2), {}, {}, "not run yet"),
]


GRID = GridComparison(OUTCOMES, SCORE)


def shown(grid: GridComparison, **look: object) -> str:
    text = io.StringIO()
    rich.console.Console(file=text, width=80, **look).print(grid_report.build_table(grid))
    return text.getvalue()


def test_means_and_standard_deviations_of_a_sample_by_hand(tmp_path):
    high, higher, low = GRID.settings
    assert [(s.learning_rate, s.epochs) for s in GRID.settings] == [
        (5e-5, 2.0),
        (5e-5, 3.0),
        (3e-5, 2.0),
    ]
    assert low.mean == pytest.approx(0.7)
    assert low.deviation == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert high.mean == pytest.approx(0.6)
    assert high.deviation == pytest.approx((0.035 / 2) ** 0.5)
    assert higher.deviation is None
    # The best setting has all its seeds, and the best run need not.
    assert GRID.best == low and GRID.best_run.run == GridRun(5e-5, 3.0, 0)
    assert grid_report.list_closing_rows(tmp_path, GRID)[:6] == [
        ("best", "rate 3e-5, 2 epochs, the mean of 3 seeds"),
        ("", "dev_accuracy 0.7000 ± 0.1000"),
        ("", "no better than its seeds differ: rate 5e-5, 2 epochs"),
        ("", "dev_f1 0.3500 ± 0.0500"),
        ("best run", "dev_accuracy 0.9000: rate 5e-5, 3 epochs, seed 0"),
        ("", f"{tmp_path}/rate5e-5_epochs3_seed0"),
    ]


def test_the_table_has_a_line_a_setting_and_fits_a_terminal():
    lines = [line.split() for line in shown(GRID).splitlines() if line.strip(" ─")]
    assert lines == [
        ["learning", "rate", "epochs", "runs", "mean", "spread", "lowest", "highest"],
        ["5e-5", "2", "3", "0.6000", "0.1323", "0.5000", "0.7500"],
        ["5e-5", "3", "1", "of", "3", "0.9000", "0.9000", "0.9000"],
        ["3e-5", "2", "3", "0.7000", "0.1000", "0.6000", "0.8000"],
        ["baseline", "0.5000"],
    ]


@pytest.mark.parametrize(
    ("accuracies", "beats", "tied"),
    [
        ({2e-5: [0.5, 0.5], 3e-5: [0.5, 0.5]}, False, 1),  # every run says the same: the majority
        ({2e-5: [0.4, 0.5], 3e-5: [0.3, 0.3]}, False, 0),
        ({2e-5: [0.7, 0.72], 3e-5: [0.7, 0.7]}, True, 1),
        ({2e-5: [0.8, 0.81], 3e-5: [0.7, 0.71]}, True, 0),
        ({2e-5: [0.8, 0.81], 3e-5: [0.81]}, True, 0),  # fewer seeds are no tie
    ],
)
def test_a_best_among_ties_or_below_the_baseline_is_called_so(tmp_path, accuracies, beats, tied):
    outcomes = [
        finished(rate, 2.0, seed, accuracy)
        for rate, runs in accuracies.items()
        for seed, accuracy in enumerate(runs)
    ]
    grid = GridComparison(outcomes, SCORE)
    rows = grid_report.list_closing_rows(tmp_path, grid)
    assert rows[0][1].startswith("none: no mean is above the baseline, 0.5000") == (not beats)
    assert sum("no better than its seeds differ" in text for _, text in rows) == bool(tied)
    marked = shown(grid, force_terminal=True, color_system="standard")
    assert ("\x1b[1;32m" in marked) == beats
    grid_report.write_numbers(tmp_path, grid, {})
    numbers = json.loads((tmp_path / "grid.json").read_text())
    assert (numbers["best_beats_baseline"], len(numbers["ties_with_best"])) == (beats, tied)


def test_the_numbers_are_whole_also_before_a_run_is_finished(tmp_path):
    grid_report.write_numbers(tmp_path, GRID, {"init": "hf:x"})
    numbers = json.loads((tmp_path / "grid.json").read_text())
    assert numbers["best"]["mean"] == pytest.approx(0.7) and numbers["best"]["runs"] == 3
    assert numbers["best_run"] == "rate5e-5_epochs3_seed0" and numbers["baseline"] == 0.5
    assert [len(numbers["settings"]), len(numbers["runs"])] == [3, 9]
    assert numbers["runs"][7]["error"] == "exit code 3: error: the guard"
    assert numbers["config"] == {"init": "hf:x"}
    grid_report.write_numbers(tmp_path, GridComparison(OUTCOMES[7:], ""), {})
    numbers = json.loads((tmp_path / "grid.json").read_text())
    assert numbers["best"] is None and numbers["settings"] == []


def test_the_picture_has_a_line_for_each_number_of_epochs():
    picture = grid_report.draw_figure(GRID, "RTE: dev accuracy")
    (ax,) = picture.axes
    drawn = {one.get_label(): one.lines[0].get_ydata() for one in ax.containers}
    assert {label: list(values) for label, values in drawn.items()} == {
        "2 epochs": [pytest.approx(0.7), pytest.approx(0.6)],  # 3e-5 before 5e-5
        "3 epochs": [0.9],
    }
    picture.draw_without_rendering()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["3e-5", "5e-5"]
    assert len(ax.collections) == 2 + 2  # spreads of two lines, dots of two settings
    # Over one rate the picture goes over the epochs.
    some = [finished(5e-5, epochs, 0, 0.5 + epochs / 10) for epochs in (2.0, 3.0, 4.0)]
    (ax,) = grid_report.draw_figure(GridComparison(some, SCORE), "RTE").axes
    (line,) = ax.containers
    assert line.get_label() == "rate 5e-5" and len(line.lines[0].get_ydata()) == 3
    assert ax.get_xlabel() == "epochs"
