"""A grid whose processes only write a summary: run, resumed, reported; numbers by hand."""

import io
import json
import pathlib
import sys

import pytest
import rich.console

from bert_jax.lab import grid as grid_lib
from bert_jax.lab.grid import (
    Grid,
    GridComparison,
    GridOutcome,
    GridRun,
    choose_score,
    list_runs,
    read_outcome,
)
from bert_jax.logging.console import Screen
from data_pipeline.io import Refused

# Stands in for fine-tuning: the accuracy is 0.4 + 1000 rates + a hundredth of the seed.
RUN = """
import json, pathlib, sys
given = dict(argument.removeprefix('--').split('=') for argument in sys.argv[1:])
rate, seed = float(given['config.optim.learning_rate']), int(given['config.seed'])
workdir = pathlib.Path(given['workdir'])
(workdir / 'predictions').mkdir(parents=True, exist_ok=True)
with (workdir / 'starts').open('a') as file:
    file.write('started ')
FAILURE
accuracy = 0.4 + 1000 * rate + seed / 100
scores = {'heldout_dev_accuracy': accuracy, 'majority_dev_accuracy': 0.5}
(workdir / 'summary.json').write_text(json.dumps(scores))
"""


def grid(folder: pathlib.Path, failure: str = "", score: str = "", **fixed: object) -> Grid:
    command = [sys.executable, "-c", RUN.replace("FAILURE", failure)]
    fixed["data.task"] = "rte"
    return Grid(folder, list_runs("2e-5,5e-5", "3", "0,1"), command, fixed, score)


def run_grid(given: Grid, parallel: int = 1) -> int:
    given.claim()
    return given.run(Screen(is_writer=True), parallel)


def starts(folder: pathlib.Path) -> int:
    return sum(path.read_text().count("started") for path in folder.glob("*/starts"))


def test_a_grid_ends_with_a_table_a_picture_and_the_best(tmp_path, capsys):
    assert run_grid(grid(tmp_path, init="hf:x")) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"4 runs in {tmp_path}\n1/4  rate 2e-5, 3 epochs, seed 0  dev_accuracy")
    assert "rte: dev accuracy\n" in said and "rate 5e-5, 3 epochs, 2 seeds" in said
    assert "dev_accuracy 0.4550 ± 0.0071" in said  # 0.45 and 0.46
    assert "none: no mean is above the baseline" in said
    numbers = json.loads((tmp_path / "grid.json").read_text())
    assert numbers["best_run"] == "rate5e-5_epochs3_seed1" and numbers["score"] == "dev_accuracy"
    assert (tmp_path / "grid.png").stat().st_size > 1000
    assert (tmp_path / "rate2e-5_epochs3_seed0.log").is_file()
    # The same again runs nothing, and other settings are refused.
    grid(tmp_path, init="hf:x").claim()
    assert run_grid(grid(tmp_path, init="hf:x")) == 0 and starts(tmp_path) == 4
    assert "4 runs in" in (again := capsys.readouterr().out) and "4 of them finished" in again
    with pytest.raises(ValueError, match=r"holds a grid with init='hf:x', not 'hf:y'"):
        grid(tmp_path, init="hf:y").claim()
    with pytest.raises(ValueError, match="--score is 'dev_f1'; the scores of these runs are dev_a"):
        grid(tmp_path, score="dev_f1", init="hf:x").claim()


@pytest.mark.slow
def test_a_run_that_fails_is_said_and_tried_again_by_the_same_command(tmp_path, capsys):
    failure = "if rate == 5e-5 and seed == 0: sys.exit('error: the guard of bad numbers')"
    assert run_grid(grid(tmp_path, failure), parallel=2) == 1
    said = capsys.readouterr().out
    assert "3/4  rate 5e-5, 3 epochs, seed 0  failed: exit code 1: error: the guard of bad" in said
    assert "4/4  rate 5e-5, 3 epochs, seed 1  dev_accuracy 0.4600" in said
    assert "1 of 2" in said and "rate 2e-5, 3 epochs, 2 seeds" in said
    assert run_grid(grid(tmp_path)) == 0 and starts(tmp_path) == 5


def test_what_would_be_refused_of_every_run_is_refused_once(tmp_path, capsys):
    failure = "print('error: config.data.dir is missing'); sys.exit(2)"
    with pytest.raises(Refused, match=r"^config\.data\.dir is missing$"):
        run_grid(grid(tmp_path, failure))
    assert starts(tmp_path) == 1 and not (tmp_path / "grid.json").exists()
    assert run_grid(grid(tmp_path, "sys.exit(1)")) == 1
    assert "no run came to its end; their logs are" in capsys.readouterr().out
    # Runs have begun with these settings: a refusal forgets them no more.
    with pytest.raises(Refused):
        run_grid(grid(tmp_path, failure))
    assert (tmp_path / "grid.json").exists()


def test_a_relative_and_an_absolute_path_of_one_folder_are_equal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {"init": "hf:x", "data.dir": "glue"}
    run_grid(grid(tmp_path / "grid", **places))
    absolute = {"init": f"hf:{tmp_path}/x", "data.dir": f"{tmp_path}/glue"}
    grid(tmp_path / "grid", **absolute).claim()
    for name in places:
        with pytest.raises(Refused, match=name):
            grid(tmp_path / "grid", **absolute | {name: "orbax:x"}).claim()


@pytest.mark.slow
def test_a_failure_is_explained_by_this_start_alone(tmp_path, capsys):
    for failure, words in (
        ("sys.exit('error: the disk is full')", "failed: exit code 1: error: the disk"),
        ("raise KeyError('x')", "failed: exit code 1: KeyError"),
        ("sys.exit()", "failed: it left no summary"),
    ):
        assert run_grid(grid(tmp_path, failure)) == 1
        said = capsys.readouterr().out
        assert said.count(words) == 4 and ("disk" in said) == ("disk" in words)


def test_the_settings_are_kept_before_the_first_run_begins(tmp_path):
    failure = "if not (workdir.parent / 'grid.json').exists(): sys.exit('error: nothing is kept')"
    assert run_grid(grid(tmp_path, failure)) == 0


ONE_RUN = GridRun(5e-5, 3.0, 1)


def leave_summary(folder: pathlib.Path, run: GridRun, **numbers: object) -> None:
    (folder / run.name / "predictions").mkdir(parents=True)
    (folder / run.name / "summary.json").write_text(json.dumps(numbers))


def test_every_combination_has_a_folder_of_its_own():
    runs = list_runs("5e-5,2.5e-5,1e-4", "2,3.5", "0,7")
    assert len({run.name for run in runs}) == len(runs) == 12
    assert runs[0] == GridRun(5e-5, 2.0, 0) and runs[1] == GridRun(5e-5, 2.0, 7)
    assert ONE_RUN.name == "rate5e-5_epochs3_seed1"
    assert GridRun(2.5e-5, 3.5, 0).name == "rate2.5e-5_epochs3.5_seed0"
    close = list_runs("3e-5,3.00000001e-5", "1,1.0000001", "0")
    assert len({run.name for run in close}) == 4
    # A seed is that of layer, dropout and order.
    assert ONE_RUN.flags == [
        "--config.optim.learning_rate=5e-05",
        "--config.epochs=3.0",
        "--config.seed=1",
        "--config.data.order_seed=1",
    ]


def test_a_seed_that_is_no_whole_number_is_refused_by_that_name():
    with pytest.raises(Refused, match=r"--seeds is .* it must be whole numbers"):
        list_runs("5e-5", "3", "0,1.5")


def test_scores_are_those_of_the_development_sets_in_the_summary(tmp_path):
    scores = {
        "dev_matched_loss": 0.9,
        "dev_matched_accuracy": 0.8,
        "dev_mismatched_accuracy": 0.7,
    }
    heldout = {f"heldout_{name}": value for name, value in scores.items()}
    leave_summary(tmp_path, ONE_RUN, **heldout, majority_dev_matched_accuracy=0.35, steps=12)
    found = read_outcome(tmp_path, ONE_RUN)
    assert found == GridOutcome(ONE_RUN, scores, {"dev_matched_accuracy": 0.35})
    assert found.is_finished and choose_score([found]) == "dev_matched_accuracy"
    assert choose_score([found], "dev_mismatched_accuracy") == "dev_mismatched_accuracy"
    with pytest.raises(ValueError, match="--score is 'f1'; the scores of these runs are dev_match"):
        choose_score([found], "f1")
    # Without a request, the score with the first baseline decides.
    scores = {"dev_loss": 1.0, "dev_pearson": 0.5, "dev_spearman": 0.4}
    one = GridOutcome(ONE_RUN, scores, {"dev_spearman": 0.0, "dev_pearson": 0.0})
    failed = GridOutcome(ONE_RUN, {}, {}, "exit code 1: error")
    assert choose_score([failed, one]) == "dev_spearman"


def test_a_run_without_a_summary_or_predictions_is_not_finished(tmp_path):
    assert read_outcome(tmp_path, ONE_RUN) == GridOutcome(ONE_RUN, {}, {}, "not run yet")
    leave_summary(tmp_path, ONE_RUN, heldout_dev_accuracy=0.8)
    assert read_outcome(tmp_path, ONE_RUN).is_finished
    (tmp_path / ONE_RUN.name / "predictions").rmdir()
    outcome = read_outcome(tmp_path, ONE_RUN, "exit code 1: full")
    assert outcome == GridOutcome(ONE_RUN, {}, {}, "exit code 1: full")


def test_what_is_no_run_of_fine_tuning_is_refused(tmp_path):
    leave_summary(tmp_path, ONE_RUN, heldout_mlm_loss=2.0)
    with pytest.raises(ValueError, match=r"has no scores of a development set; is .* another kind"):
        read_outcome(tmp_path, ONE_RUN)
    (tmp_path / ONE_RUN.name / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json is not the summary of a run .*; delete"):
        read_outcome(tmp_path, ONE_RUN)
    (tmp_path / "grid.json").write_text('{"score": "dev_accuracy"}')
    with pytest.raises(ValueError, match="'config'"):
        grid(tmp_path).claim()


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
    rich.console.Console(file=text, width=80, **look).print(grid_lib.build_table(grid))
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
    assert grid_lib.list_closing_rows(tmp_path, GRID)[:6] == [
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
    rows = grid_lib.list_closing_rows(tmp_path, grid)
    assert rows[0][1].startswith("none: no mean is above the baseline, 0.5000") == (not beats)
    assert sum("no better than its seeds differ" in text for _, text in rows) == bool(tied)
    marked = shown(grid, force_terminal=True, color_system="standard")
    assert ("\x1b[1;32m" in marked) == beats
    grid_lib.write_numbers(tmp_path, grid, {})
    numbers = json.loads((tmp_path / "grid.json").read_text())
    assert (numbers["best_beats_baseline"], len(numbers["ties_with_best"])) == (beats, tied)


def test_the_numbers_are_whole_also_before_a_run_is_finished(tmp_path):
    grid_lib.write_numbers(tmp_path, GRID, {"init": "hf:x"})
    numbers = json.loads((tmp_path / "grid.json").read_text())
    assert numbers["best"]["mean"] == pytest.approx(0.7) and numbers["best"]["runs"] == 3
    assert numbers["best_run"] == "rate5e-5_epochs3_seed0" and numbers["baseline"] == 0.5
    assert [len(numbers["settings"]), len(numbers["runs"])] == [3, 9]
    assert numbers["runs"][7]["error"] == "exit code 3: error: the guard"
    assert numbers["config"] == {"init": "hf:x"}
    grid_lib.write_numbers(tmp_path, GridComparison(OUTCOMES[7:], ""), {})
    numbers = json.loads((tmp_path / "grid.json").read_text())
    assert numbers["best"] is None and numbers["settings"] == []


def test_the_picture_has_a_line_for_each_number_of_epochs():
    picture = grid_lib.draw_figure(GRID, "RTE: dev accuracy")
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
    (ax,) = grid_lib.draw_figure(GridComparison(some, SCORE), "RTE").axes
    (line,) = ax.containers
    assert line.get_label() == "rate 5e-5" and len(line.lines[0].get_ydata()) == 3
    assert ax.get_xlabel() == "epochs"
