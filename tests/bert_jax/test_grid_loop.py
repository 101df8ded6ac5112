"""A grid of processes that only leave a summary: gone through, gone on with, and what it says."""

import json
import pathlib
import sys

import pytest

from bert_jax.exit_codes import Refused
from bert_jax.grid_loop import Grid, go_through
from bert_jax.grid_runs import all_runs

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
    return Grid(folder, all_runs([2e-5, 5e-5], [3.0], [0, 1]), command, "rte", fixed, score)


def starts(folder: pathlib.Path) -> int:
    return sum(path.read_text().count("started") for path in folder.glob("*/starts"))


def test_a_grid_ends_with_a_table_a_picture_and_the_best(tmp_path, capsys):
    assert go_through(grid(tmp_path, init="hf:x")) == 0
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
    grid(tmp_path, init="hf:x").check()
    assert go_through(grid(tmp_path, init="hf:x")) == 0 and starts(tmp_path) == 4
    assert "4 runs in" in (again := capsys.readouterr().out) and "4 of them finished" in again
    with pytest.raises(ValueError, match=r"holds a grid with config\.init='hf:x'; runs of other s"):
        grid(tmp_path, init="hf:y").check()
    with pytest.raises(
        ValueError, match=r"--score is 'dev_f1'; the scores of these runs are dev_a"
    ):
        grid(tmp_path, score="dev_f1", init="hf:x").check()


def test_a_run_that_fails_is_said_and_tried_again_by_the_same_command(tmp_path, capsys):
    failure = "if rate == 5e-5 and seed == 0: sys.exit('error: the guard of bad numbers')"
    assert go_through(grid(tmp_path, failure)) == 1
    said = capsys.readouterr().out
    assert "3/4  rate 5e-5, 3 epochs, seed 0  failed: exit code 1: error: the guard of bad" in said
    assert "4/4  rate 5e-5, 3 epochs, seed 1  dev_accuracy 0.4600" in said
    assert "1 of 2" in said and "rate 2e-5, 3 epochs, 2 seeds" in said
    assert go_through(grid(tmp_path)) == 0 and starts(tmp_path) == 5


def test_what_would_be_refused_of_every_run_is_refused_once(tmp_path, capsys):
    failure = "print('error: config.data.dir is missing'); sys.exit(2)"
    with pytest.raises(Refused, match=r"^config\.data\.dir is missing$"):
        go_through(grid(tmp_path, failure))
    assert starts(tmp_path) == 1
    assert go_through(grid(tmp_path, "sys.exit(1)")) == 1
    assert "no run came to its end; their logs are" in capsys.readouterr().out
