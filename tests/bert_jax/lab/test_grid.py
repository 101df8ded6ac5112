"""A grid of processes that only leave a summary: run, resumed, reported."""

import json
import pathlib
import sys

import pytest

from bert_jax.lab.grid import (
    Grid,
    GridOutcome,
    GridRun,
    choose_score,
    list_runs,
    read_outcome,
)
from bert_jax.logging.console import Screen
from data_pipeline.io.refused import Refused

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
