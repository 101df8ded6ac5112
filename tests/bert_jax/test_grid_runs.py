"""Runs of a grid: their names and flags, what summaries say, processes that end well or badly."""

import json
import pathlib
import signal
import sys
import threading

import pytest

from bert_jax import grid_runs
from bert_jax.grid_runs import Outcome, Run

RUN = Run(5e-5, 3.0, 1)


def leave_summary(folder: pathlib.Path, run: Run, **numbers: object) -> None:
    (folder / run.name / "predictions").mkdir(parents=True)
    (folder / run.name / "summary.json").write_text(json.dumps(numbers))


def test_every_combination_has_a_folder_of_its_own():
    runs = grid_runs.all_runs([5e-5, 2.5e-5, 1e-4], [2.0, 3.5], [0, 7])
    assert len({run.name for run in runs}) == len(runs) == 12
    assert runs[0] == Run(5e-5, 2.0, 0) and runs[1] == Run(5e-5, 2.0, 7)
    assert RUN.name == "rate5e-5_epochs3_seed1"
    assert Run(2.5e-5, 3.5, 0).name == "rate2.5e-5_epochs3.5_seed0"


def test_a_seed_is_that_of_layer_dropout_and_order():
    assert RUN.flags == [
        "--config.optim.learning_rate=5e-05",
        "--config.epochs=3.0",
        "--config.seed=1",
        "--config.data.order_seed=1",
    ]


def test_scores_are_those_of_the_development_sets_in_the_summary(tmp_path):
    leave_summary(
        tmp_path,
        RUN,
        heldout_dev_matched_loss=0.9,
        heldout_dev_matched_accuracy=0.8,
        heldout_dev_mismatched_accuracy=0.7,
        majority_dev_matched_accuracy=0.35,
        steps=12,
    )
    found = grid_runs.outcome(tmp_path, RUN)
    assert found.is_finished and found.error == ""
    assert found.scores == {
        "dev_matched_loss": 0.9,
        "dev_matched_accuracy": 0.8,
        "dev_mismatched_accuracy": 0.7,
    }
    assert found.baseline == {"dev_matched_accuracy": 0.35}
    assert grid_runs.main_score([found]) == "dev_matched_accuracy"
    assert grid_runs.main_score([found], "dev_mismatched_accuracy") == "dev_mismatched_accuracy"
    with pytest.raises(
        ValueError, match=r"--score is 'f1'; the scores of these runs are dev_match"
    ):
        grid_runs.main_score([found], "f1")


def test_the_score_with_the_first_baseline_decides():
    scores = {"dev_loss": 1.0, "dev_pearson": 0.5, "dev_spearman": 0.4}
    one = Outcome(RUN, scores, {"dev_spearman": 0.0, "dev_pearson": 0.0})
    failed = Outcome(RUN, {}, {}, "exit code 1: error")
    assert grid_runs.main_score([failed, one]) == "dev_spearman"


def test_a_run_without_a_summary_is_not_finished(tmp_path):
    assert grid_runs.outcome(tmp_path, RUN) == Outcome(RUN, {}, {}, "not run yet")
    (tmp_path / RUN.name).mkdir()
    assert grid_runs.outcome(tmp_path, RUN, "exit code 3: stopped").error == "exit code 3: stopped"


def test_a_run_that_was_stopped_before_its_predictions_is_not_finished(tmp_path):
    leave_summary(tmp_path, RUN, heldout_dev_accuracy=0.8)
    assert grid_runs.outcome(tmp_path, RUN).is_finished
    (tmp_path / RUN.name / "predictions").rmdir()
    assert grid_runs.outcome(tmp_path, RUN, "exit code 1: full") == Outcome(
        RUN, {}, {}, "exit code 1: full"
    )


def test_what_is_no_run_of_fine_tuning_is_refused(tmp_path):
    leave_summary(tmp_path, RUN, heldout_mlm_loss=2.0)
    with pytest.raises(
        ValueError, match=r"has no scores of a development set; is .* a run of somet"
    ):
        grid_runs.outcome(tmp_path, RUN)
    (tmp_path / RUN.name / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json is not the summary of a run .*; delete"):
        grid_runs.outcome(tmp_path, RUN)


def carried_out(code: str, output: pathlib.Path, show=lambda: None) -> str:
    return grid_runs.carry_out([sys.executable, "-c", code], output, {"PLACE": "here"}, show)


def test_a_process_that_ends_well_leaves_its_output(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("before\n")
    assert carried_out("import os; print(os.environ['PLACE'])", log) == ""
    assert log.read_text() == "before\nhere\n"


def test_one_that_fails_is_known_by_its_code_and_its_error(tmp_path):
    code = "import sys; print('error: no such task'); print('see the log'); sys.exit(2)"
    assert carried_out(code, tmp_path / "a.log") == "exit code 2: error: no such task"
    assert carried_out("import sys; sys.exit(3)", tmp_path / "b.log").startswith("exit code 3: ")
    raised = carried_out("raise KeyError('x')", tmp_path / "c.log")
    assert raised == "exit code 1: KeyError: 'x'"


def test_sigterm_ends_the_run_under_way_first(tmp_path):
    """The run waits to be told by SIGINT, once, and then writes that it was."""
    told = tmp_path / "told"
    code = (
        "import pathlib, signal, sys\n"
        f"signal.signal(signal.SIGINT, lambda *_: (open({str(told)!r}, 'a').write('told '),"
        " sys.exit(130)))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    log = tmp_path / "run.log"

    def ask_once_ready() -> None:
        while not log.is_file() or "ready" not in log.read_text():
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    asking = threading.Thread(target=ask_once_ready)
    with grid_runs.ends_on_sigterm(), pytest.raises(SystemExit) as ended:
        asking.start()
        carried_out(code, log)
    asking.join()
    assert ended.value.code == 143 and told.read_text() == "told "
