"""A study of tiny runs: refusals, which runs are started again, and the report."""

import dataclasses
import errno
import fcntl
import io
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import rich.console

from bert_jax.config import ModelConfig, overrides
from bert_jax.lab import plan, report, runs
from bert_jax.lab import study as study_lib
from bert_jax.lab.kinds import KINDS, build_steps, choose_sentences, score_masked_words
from bert_jax.lab.row_kind import (
    COMMON,
    MASKED_WORDS,
    PSEUDO_PERPLEXITY,
    RowCost,
    Run,
    explain_missing,
    load_task,
    parse_settings,
)
from bert_jax.lab.study import RowResult, Study
from bert_jax.lab.study_config import StudyConfig, StudyRow, StudyTask
from bert_jax.logging.console import Screen
from bert_jax.logging.metrics_writer import METRICS, SUMMARY
from bert_jax.model.flops import count_train_flops
from bert_jax.runtime import workdir_lock
from bert_jax.runtime.cli import find_config
from data_pipeline.cli import child_process
from data_pipeline.cli.main import Stopped
from data_pipeline.io.jsonl import FINDING
from data_pipeline.store import open_store
from tests.bert_jax.small_checkpoints import tensors, write
from tests.faults.runs import ROOT

TINY = (
    "model.hidden_size=16 model.num_hidden_layers=1 model.intermediate_size=32 "
    "phases[0].seq_len=16 phases[0].steps=3 phases[0].batch_size=8 phases[1].seq_len=24 "
    "phases[1].steps=2 phases[1].batch_size=8 phases[1].restart_warmup_steps=1 "
    "eval.examples=16 optim.warmup_steps=1 compute.rolled_layers=True"
)
BERT = StudyRow("BERT", config="configs/quickstart.py:model=bert", flags=TINY)
LTR = StudyRow("LTR", config="configs/quickstart.py:model=left_to_right", flags=TINY)
SKIPGRAM = StudyRow("skipgram", kind="skipgram", flags="tokens=768 width=7")
FROZEN = StudyRow("frozen", kind="frozen", reads="BERT")
STUDIES = ROOT / "configs" / "studies"
SILENT = Screen(is_writer=False)
LANE = runs.Lane(SILENT, {})


@pytest.fixture
def config(tiny_store):
    return StudyConfig(rows=(BERT, LTR), store=str(tiny_store), seeds=2, seq_len=16)


def changed(row, **settings):
    return dataclasses.replace(row, **settings)


def test_cost_counts_rows_of_both_phases(config, tmp_path):
    cost = Study(config, tmp_path).costs[0]
    assert cost.tokens == 3 * 8 * 16 + 2 * 8 * 24
    model = ModelConfig(
        vocab_size=200,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    slots = [3, 4]  # 15% of 16 and 24, rounded up
    expected = 24 * count_train_flops(model, 16, slots[0])
    assert cost.operations == expected + 16 * count_train_flops(model, 24, slots[1])


def test_baselines_read_as_many_tokens_as_they_are_told(config, tiny_store, tmp_path):
    bilm = StudyRow("bilm", kind="bilm", flags="tokens=768 seq_len=16 batch_size=8 width=3 units=5")
    rows = (BERT, SKIPGRAM, bilm, StudyRow("counts", kind="counts"))
    costs = Study(dataclasses.replace(config, rows=rows), tmp_path).costs
    assert [cost.tokens for cost in costs] == [768, pytest.approx(768), 768, 0]
    weights = 2 * (2 * (3 * 20 + 3 * 20 + 5 * 3) + 3 * 200)  # two layers and the head, twice
    assert costs[2].operations == 6 * 768 * weights
    words = KINDS["bilm"].command(Run(bilm, 4, "STORE", tmp_path))
    assert {"bilm", "--steps=6", "--width=3", "--seed=4", "--store=STORE"} <= set(words)


def test_a_row_that_reads_another_has_its_run(config, tmp_path, fakes):
    _, failing = fakes
    failing.add("BERT-seed1")
    rows = (BERT, FROZEN)
    results = Study(dataclasses.replace(config, rows=rows), tmp_path).run(SILENT)
    assert results[1].errors == ["seed 1: it reads the run of BERT, which is not finished"]
    assert results[1].missing[MASKED_WORDS] == "the same as of BERT"


def test_commands_of_a_task(tmp_path):
    task = StudyTask("ner", "configs/finetune/ner.py", "data.dir=DIR epochs=2")
    places = (tmp_path / "a", tmp_path / "b")

    def command(**row):
        row = StudyRow("row", **row)
        run = Run(row, 1, "STORE", tmp_path / "row-seed1", places)
        return KINDS[row.kind].task_command(run, task, tmp_path / "out")

    assert command(kind="counts") == "counts have no vector for each word, so they learn no tags"
    assert f"--from={places[0]},{places[1]}" in command(kind="taglm")
    assert {"elmo", "--config.epochs=2", "--config.seed=1"} <= set(command(kind="bilm"))
    words = command(kind="frozen", tagger="units=64 learning_rate=1e-2")
    assert {"bert", f"--from=orbax:{places[0]}", "--units=64", "--learning_rate=0.01"} <= set(words)
    words = command(kind="checkpoint", flags="step=40", finetune="epochs=1 batch_size=16")
    assert f"--config.init=orbax:{places[0]}@40" in words
    assert words.index("--config.epochs=2") < words.index("--config.epochs=1")
    words = command(kind="untrained", finetune="epochs=1")
    assert {f"--config.init=orbax:{places[0]}", "--config.from_scratch=True"} <= set(words)
    words = command(kind="given", flags="checkpoint=hf:DIR", finetune="epochs=1")
    assert {"--config.init=hf:DIR", "--config.epochs=1", "--config.seed=1"} <= set(words)


def test_settings_of_a_row_are_given_once_and_their_quotation_ends():
    assert parse_settings("a='b c' d=1") == {"a": "b c", "d": "1"}
    for text in ("a='b", "a=1 a=2", "a"):
        with pytest.raises(ValueError, match=r"close the quotation$|once, as KEY=VALUE$"):
            parse_settings(text)


def test_a_given_checkpoint_is_its_weights_and_fills_masks_of_its_own_tokens(
    config, tiny_store, tmp_path
):
    arrays = tensors()
    first, copy = (write(tmp_path / name, arrays) for name in ("first", "copy"))
    other = write(tmp_path / "other", {**arrays, "bert.pooler.dense.bias": np.ones(14, np.float32)})

    def check(flags):
        row = StudyRow("given", kind="given", flags=flags)
        return Study(dataclasses.replace(config, rows=(BERT, row)), tmp_path / "none")

    rows = [check(f"checkpoint=hf:{folder}")._identity.rows for folder in (first, copy, other)]
    assert rows[0] == rows[1] != rows[2]
    warm = [
        KINDS["pretrain"].check(changed(BERT, flags=f"{TINY} init=hf:{folder}"), str(tiny_store))
        for folder in (first, copy, other)
    ]
    known = list(map(study_lib._describe_settings, warm))
    assert known[0] == known[1] != known[2]
    for flags in ("", "checkpoint=", f"checkpoint=hf:{first} step=3", "hf:DIR"):
        with pytest.raises(ValueError, match="row given: its flags"):
            check(flags)
    row = StudyRow("given", kind="given", flags=f"checkpoint=hf:{first}")
    run = Run(row, 0, str(tiny_store), tmp_path)
    assert KINDS["given"].scores(run, 16, SILENT) == explain_missing(
        "its vocabulary is not the store's"
    )


def test_a_model_of_fewer_positions_than_scored_rows_has_a_reason(tiny_store, tmp_path):
    address = f"hf:{write(tmp_path, tensors())}"
    assert score_masked_words(address, str(tiny_store), 20, SILENT) == explain_missing(
        "it has 19 positions, fewer than config.seq_len=20"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("[a-z]*.py")))
def test_bundled_studies_are_equal_in_tokens_or_say_that_they_are_not(tiny_store, tmp_path, name):
    place = f"configs/studies/{name}.py"
    bundled = overrides.load(StudyConfig, place, find_config, [])
    costs = Study(dataclasses.replace(bundled, store=str(tiny_store)), tmp_path).costs
    for row in bundled.rows:  # its settings of fine-tuning are some
        load_task(StudyTask("cola", "configs/finetune/glue.py:task=cola"), row.finetune)
    tokens = [cost.tokens for cost in costs if cost.tokens]
    assert bundled.equal == "nothing" or max(tokens) == pytest.approx(min(tokens))


@pytest.mark.parametrize("given", ["width=0", "width=5", "layers=7"])
def test_sizes_that_do_not_divide_the_papers_are_named(given):
    with pytest.raises(ValueError, match=f"{given}.* does not divide"):
        overrides.load(StudyConfig, f"configs/studies/sizes.py:{given}", find_config, [])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rows": ()}, "config.rows is empty"),
        ({"rows": (BERT, BERT)}, "called 'BERT'"),
        ({"rows": (changed(BERT, name="BE\nRT"),)}, r"called 'BE\\nRT'; give each a unique print"),
        ({"rows": (changed(BERT, kind="lstm"),)}, "row BERT: its kind is 'lstm'"),
        ({"rows": (changed(BERT, flags="data.store=x"),)}, "data.store is x"),
        ({"rows": (changed(BERT, flags="steps=9"),)}, "no such field"),
        ({"rows": (changed(BERT, flags="seed=9"),)}, "row BERT: --config.seed=9: the study"),
        (
            {"rows": (BERT, changed(LTR, flags=f"{TINY} phases[0].steps=6"))},
            r"row LTR takes 1152 tokens.*multiply its steps by 0.667",
        ),
        ({"equal": "operations"}, "row LTR takes .* operations"),
        ({"equal": "hours"}, "config.equal"),
        (
            {"tasks": (StudyTask("rte", "configs/finetune/glue.py:task=rte", "data.dir=none"),)},
            "task rte: .*none",
        ),
        ({"rows": (BERT, changed(SKIPGRAM, flags="steps=3"))}, "flags has steps, which is no"),
        ({"rows": (BERT, changed(SKIPGRAM, flags="epochs=-1"))}, "flags.epochs is -1"),
        ({"rows": (BERT, changed(SKIPGRAM, flags="epochs=1"))}, "row skipgram takes .* tokens"),
        ({"rows": (changed(SKIPGRAM, flags="tokens=4M"),)}, "flags has tokens=4M; it must be a"),
        ({"rows": (changed(SKIPGRAM, flags="tokens=768 epochs=1"),)}, "tokens=768 and epochs"),
        ({"rows": (BERT, changed(SKIPGRAM, config="x.py"))}, "its config is 'x.py'"),
        ({"rows": (BERT, changed(FROZEN, tagger="layers=3"))}, "tagger has layers, which is no"),
        ({"rows": (BERT, changed(FROZEN, tagger="units=0"))}, "its tagger.units is 0"),
        ({"rows": (changed(BERT, tagger="units=8"),)}, "its tagger is 'units=8'"),
        ({"rows": (BERT, FROZEN, changed(FROZEN, name="2", reads="no"))}, "row 2: its reads is"),
        ({"rows": (BERT, changed(FROZEN, reads="BERT,no"))}, "row frozen: its reads is 'BERT,no'"),
        ({"rows": (FROZEN, BERT)}, "an earlier row of kind pretrain"),
        ({"rows": (BERT, changed(LTR, reads="BERT"))}, "a row of kind pretrain reads no row"),
    ],
)
def test_refused_before_anything_is_written(config, tmp_path, settings, words):
    folder = tmp_path / "study"
    with pytest.raises(ValueError, match=words):
        Study(dataclasses.replace(config, **settings), folder)
    assert not folder.exists()


@pytest.fixture
def fakes(monkeypatch):
    """A kind whose runs are not trained: each leaves a summary; `started` lists them."""
    started = []

    def run_command(command, log, environment, show_progress):
        started.append(log.stem)
        if log.stem in run_command.failing:
            log.write_text("error: no memory\n")
            return 1
        log.with_suffix("").mkdir()
        (log.with_suffix("") / SUMMARY).touch()
        return 0

    def scores(run, seq_len, screen):
        if run.row.name == "LTR":
            return {**explain_missing("it reads from the left alone"), "auc": 0.5 + run.seed}
        return {**dict.fromkeys(COMMON, 4.0 + run.seed), "auc": 0.25 + run.seed}

    run_command.failing = set()
    kind = dataclasses.replace(KINDS["pretrain"], scores_on_device=False, scores=scores)
    monkeypatch.setitem(KINDS, "pretrain", kind)
    monkeypatch.setattr(runs.child_process, "run", run_command)
    return started, run_command.failing


def test_finished_runs_are_not_repeated_and_failed_ones_are(config, tmp_path, fakes):
    started, failing = fakes
    failing.add("LTR-seed0")
    results = Study(config, tmp_path).run(SILENT)
    assert started == ["BERT-seed0", "LTR-seed0", "BERT-seed1", "LTR-seed1"]
    assert results[1].errors == ["seed 0: exit code 1: error: no memory"]
    assert results[0].scores[MASKED_WORDS] == {0: 4.0, 1: 5.0}
    started.clear()
    failing.clear()
    more = dataclasses.replace(config, rows=(BERT, LTR, changed(BERT, name="again")), seeds=2)
    results = Study(more, tmp_path).run(SILENT)
    assert started == ["LTR-seed0", "again-seed0", "again-seed1"]
    assert not any(result.errors for result in results)


@pytest.mark.parametrize(
    ("visible", "used"),
    [(None, {"0", "1"}), ("4,6", {"4", "6"}), ("GPU-1", {"GPU-1"}), ("", {""})],
)
def test_runs_take_place_at_once_and_a_row_waits_for_the_one_it_reads(
    config, tmp_path, fakes, monkeypatch, visible, used
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    both, devices, quick = threading.Barrier(2, timeout=20), set(), runs.child_process.run

    def slow(command, log, environment, show_progress):
        devices.add(environment["CUDA_VISIBLE_DEVICES"])
        both.wait()  # for another run, which takes place now
        return quick(command, log, environment, show_progress)

    monkeypatch.setattr(runs.child_process, "run", slow)
    rows = (BERT, FROZEN, LTR)
    results = Study(dataclasses.replace(config, rows=rows), tmp_path).run(SILENT, parallel=2)
    assert [sorted(result.seeds) for result in results] == [[0, 1]] * 3
    assert not any(result.errors for result in results)
    assert devices == used


@pytest.mark.slow
def test_a_signal_ends_every_run_and_starts_no_other(
    config, tmp_path, fakes, monkeypatch, stops_raise
):
    begun = []

    def endless(command, log, environment, show_progress):
        begun.append(log.stem)
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            if len(begun) == 2 and log.stem == "LTR-seed0":
                begun.append("signal")
                signal.raise_signal(signal.SIGUSR1)
            show_progress()
            time.sleep(0.01)
        raise AssertionError("no interrupt came")

    monkeypatch.setattr(runs.child_process, "run", endless)
    with pytest.raises(Stopped):
        Study(config, tmp_path).run(SILENT, parallel=2)
    assert sorted(begun) == ["BERT-seed0", "LTR-seed0", "signal"]


def test_a_run_whose_scores_cannot_be_read_fails_alone(config, tmp_path, fakes):
    Study(config, tmp_path).run(SILENT)
    (tmp_path / f"BERT-seed0-{study_lib.SCORES}").write_text("{")
    bert, ltr = Study(config, tmp_path).run(SILENT)
    (error,) = bert.errors
    assert "seed 0" in error
    assert "is not JSON" in error
    assert bert.scores[MASKED_WORDS] == {1: 5.0}
    assert ltr.scores["auc"] == {0: 0.5, 1: 1.5}


def test_the_folder_of_another_study_is_refused(config, tmp_path, fakes):
    Study(config, tmp_path).run(SILENT)
    other = changed(BERT, flags=f"{TINY} optim.beta2=0.9")
    with pytest.raises(ValueError, match=r"row\.BERT\.optim\.beta2=0\.98, not 0\.9"):
        Study(dataclasses.replace(config, rows=(other, LTR)), tmp_path)
    with pytest.raises(ValueError, match=r"config.seq_len=16, not 24"):
        Study(dataclasses.replace(config, seq_len=24), tmp_path)


def test_a_study_whose_store_has_moved_resumes(config, tiny_store, tmp_path, fakes):
    started, _ = fakes
    folder = tmp_path / "study"
    Study(config, folder).run(SILENT)
    started.clear()
    moved = tmp_path / "moved"
    shutil.copytree(tiny_store, moved)
    Study(dataclasses.replace(config, store=str(moved)), folder).run(SILENT)
    assert started == []
    path = folder / study_lib.FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "store_digest": "another"}))
    with pytest.raises(ValueError, match="holds a study of the store"):
        Study(config, folder)


def write_pets(folder, label="dog", more=""):
    """A task of two texts, of which the second has this label, in a folder."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "dev"):
        (folder / f"{split}.csv").write_text(f"text,label\na cat,cat\na dog,{label}\n")
    columns = f"data.dir={folder} data.text_column=text data.label_column=label"
    return StudyTask("pets", "configs/finetune/table.py", f"{columns} {more}")


@pytest.mark.slow
def test_a_task_is_its_examples_and_settings(config, tiny_store, tmp_path, fakes):
    def describe(task):
        return study_lib.describe_task(task, open_store(tiny_store))

    first, same = (write_pets(tmp_path / name, "pet") for name in "ab")
    other = write_pets(tmp_path / "c")
    assert describe(first) == describe(same)
    assert describe(first)["examples"] != describe(other)["examples"]
    study = dataclasses.replace(config, tasks=(first,))
    with pytest.raises(ValueError, match=r"row BERT: .*epoch=4"):
        Study(dataclasses.replace(study, rows=(changed(BERT, finetune="epoch=4"),)), tmp_path)
    for setting in ("init=hf:DIR", "seed=4", "data.order_seed=4"):  # each run has its own
        for rows, task in (
            ((changed(BERT, finetune=setting),), first),
            ((BERT,), write_pets(tmp_path / "a", "pet", setting)),
        ):
            with pytest.raises(ValueError, match=f"--config.{setting}: the study decides it"):
                Study(dataclasses.replace(study, rows=rows, tasks=(task,)), tmp_path)
    Study(study, tmp_path / "study").run(SILENT)
    Study(dataclasses.replace(study, tasks=(same,)), tmp_path / "study")
    with pytest.raises(ValueError, match=r"task\.pets\.examples="):
        Study(dataclasses.replace(study, tasks=(other,)), tmp_path / "study")


def test_a_run_waits_for_the_process_that_still_saves_in_its_folder(
    config, tmp_path, fakes, monkeypatch
):
    started, _ = fakes
    monkeypatch.setattr(runs, "_POLL_SECS", 0.01)
    study = Study(dataclasses.replace(config, rows=(BERT,), seeds=1), tmp_path)
    (tmp_path / "BERT-seed0").mkdir()
    monkeypatch.setattr(pathlib.Path, "mkdir", lambda *_, **__: None)  # of the fake
    with (tmp_path / "BERT-seed0" / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=study._run, args=(RowResult(BERT), study.runs[0], LANE))
        thread.start()
        time.sleep(0.2)
        assert not started
        fcntl.flock(file, fcntl.LOCK_UN)
        thread.join(20)
        assert started == ["BERT-seed0"]
        # After its time is over it tries.
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(runs, "_MAX_LOCKED_SECS", 0.1)
        assert LANE.run("BERT", [], tmp_path / "BERT-seed0") == ""
    assert len(started) == 2


def test_a_run_is_not_stopped_because_its_metrics_cannot_be_read_now(tmp_path, monkeypatch):
    def fail(path):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(runs.small_files, "open_regular", fail)
    monkeypatch.setattr(child_process, "_POLL_SECS", 0.05)
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.5)"]
    assert LANE.run("BERT", sleep, tmp_path / "BERT-seed0") == ""


def test_the_last_step_is_read_from_the_end_of_the_metrics(tmp_path):
    assert runs._read_last_step(tmp_path) == 0
    line = json.dumps({"step": 120, "split": "heldout", "loss": 1.5}) + "\n"
    finding = json.dumps({"step": 130, "split": FINDING, "rule": "plateau", "sentence": "Flat."})
    metrics = tmp_path / METRICS
    metrics.write_text(f"{line}{finding}\n" + '{"step": 14')
    assert runs._read_last_step(tmp_path) == 120
    # What lies before the end is not read again every second.
    metrics.write_text("no JSON\n" * 10_000 + line)
    assert runs._read_last_step(tmp_path) == 120


def test_a_folder_has_one_study_at_once(config, tmp_path):
    study = Study(config, tmp_path / "study")
    (tmp_path / "study").mkdir()
    with (tmp_path / "study" / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is in use by the run of process"):
            workdir_lock.lock_folder(study.folder)
    workdir_lock.lock_folder(study.folder)


def test_report_has_means_differences_reasons_and_failures(tmp_path):
    ours, theirs = [4.61, 4.58, 4.66], [4.50, 4.55, 4.57]
    results = [
        RowResult(BERT, {0, 1, 2}, {"loss": dict(enumerate(theirs))}),
        RowResult(changed(BERT, name="ours"), {0, 1, 2}, {"loss": dict(enumerate(ours))}),
        RowResult(
            LTR, {0}, {"auc": {0: 0.5}}, {"loss": "it fills no masks"}, ["seed 1: no memory"]
        ),
    ]
    report.write(tmp_path, report.Report(results, ""))
    numbers = json.loads((tmp_path / report.NUMBERS).read_text())
    loss = numbers["rows"][1]["measures"]["loss"]
    assert loss["mean"] == pytest.approx(np.mean(ours))
    assert loss["standard_deviation"] == pytest.approx(np.std(ours, ddof=1))
    (difference,) = numbers["differences"]
    assert (difference["ours"], difference["theirs"]) == ("ours", "BERT")
    assert difference["interval"]["mean"] == pytest.approx(np.mean(ours) - np.mean(theirs))
    page = (tmp_path / report.PAGE).read_text()
    half_width = difference["interval"]["half_width"]  # by scipy: tests of statistics.py
    differs = f"| minus BERT | loss |\n| --- | --- |\n| ours | +0.077 ± {half_width:.3f} |"
    for text in (
        *("No loss of LTR: it fills no masks", "no memory", "| LTR | 1, 1 failed |"),
        *("| ours | 3 | 4.617 ± 0.040 |", differs, "0 of 1 differences"),
    ):
        assert text in page
    assert (tmp_path / report.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_a_study_of_which_every_run_failed_has_no_picture(tmp_path):
    names = report.write(tmp_path, report.Report([RowResult(BERT, errors=["seed 0: dead"])], ""))
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    page = (tmp_path / report.PAGE).read_text()
    assert "BERT failed, seed 0: dead" in page and report.PICTURE not in page


@pytest.mark.parametrize(
    ("values", "shown", "difference"),
    [
        ([0.9103, 0.9104, 0.9106], "0.910 ± 0.000", "**+0.00043 ± 0.00038**"),
        ([0.9140, 0.9139, 0.9143], "0.914 ± 0.000", "**+0.0041 ± 0.0005**"),
        ([0.91, 0.91, 0.91], "0.910 ± 0.000", "+0.000 ± 0.000"),
    ],
)
def test_a_small_difference_is_not_rounded_to_nothing(values, shown, difference):
    results = [
        RowResult(changed(BERT, name=name), {0, 1, 2}, {"auc": dict(enumerate(scores))})
        for name, scores in (("a", [0.91, 0.91, 0.91]), ("b", values))
    ]
    compared = report.Report(results, "")
    assert compared.means()[2][2] == shown
    assert compared.comparison()[1][1] == difference


@pytest.mark.parametrize("name", ["BERT [large]", "[/x]", ":smile:", "*best*", "best*"])
def test_a_terminal_shows_names_as_they_are(name):
    results = [
        RowResult(changed(BERT, name=row), {0, 1}, {f"auc {name}": {0: 0.5, 1: 0.5}})
        for row in (name, "other")
    ]
    tables = report.Report(results, "").tables()
    tables.append(plan.build_table([plan.StudyRowPlan(name, RowCost(1, 1))]))
    console = rich.console.Console(file=io.StringIO(), width=200)
    for table in tables:
        console.print(table)
    assert console.file.getvalue().count(name) == 5


def test_names_are_shown_as_they_are_and_seeds_in_their_order(tmp_path):
    losses = {1: 4.5, 0: 4.25}  # run at once, the second seed may end first
    results = [RowResult(changed(BERT, name="a|b $x$"), {0, 1}, {"loss_$y$": losses})]
    report.write(tmp_path, report.Report(results, ""))
    (row,) = json.loads((tmp_path / report.NUMBERS).read_text())["rows"]
    assert list(row["measures"]["loss_$y$"]["by_seed"]) == ["0", "1"]
    assert "| a\\|b $x$ | 2 | 4.375 ± 0.177 |" in (tmp_path / report.PAGE).read_text()
    (axes,) = report.Report(results, "").picture().axes
    assert not any(text.get_parse_math() for text in (axes.title, *axes.get_yticklabels()))


def test_rows_are_compared_with_the_reference_and_drawn_in_lines_of_panels(config, tmp_path):
    names = ("a", "b", "c")
    losses = ([4.0, 4.1, 4.2], [3.0, 3.1, 3.2001], [90.0, 190.0, 110.0])
    rest = {name: dict(enumerate(losses[0])) for name in ("one", "two", "three")}
    results = [
        RowResult(changed(BERT, name=name), {0, 1, 2}, {"loss": dict(enumerate(values)), **rest})
        for name, values in zip(names, losses, strict=True)
    ]
    results[0].scores["alone"] = {0: 1.0}
    compared = report.Report(results, "", "b")
    header, *lines = compared.comparison()
    assert header == ["minus b", "loss", "one", "two", "three"]
    assert [cells[0] for cells in lines] == ["a", "c"]
    assert lines[0][1] == "**+1.000 ± 0.000**"
    assert lines[1][1].startswith("+126.9 ± ")
    assert not lines[1][1].startswith("**")
    assert [table.row_count for table in compared.tables()] == [3, 2]
    panels = compared.picture().axes
    titles = [axes.get_title() for axes in panels if axes.axison]
    assert titles == ["loss", "one", "two", "three"]  # a single row compares with none
    assert len(panels) == 6
    words = [axes.get_xlabel() for axes in panels[:2]]
    assert words == ["lower is better", "higher is better"]
    with pytest.raises(ValueError, match=r"config\.compare_with is 'c', which is not a row"):
        Study(dataclasses.replace(config, compare_with="c"), tmp_path)


def test_sentences_of_all_of_a_split_are_scored(tiny_store):
    split = open_store(tiny_store).heldout
    sentences = choose_sentences(split, 9)
    lengths = np.diff(np.asarray(split.sentence_offsets))
    assert len(sentences) == min(256, (lengths <= 9).sum())
    assert max(map(len, sentences)) <= 9
    starts = np.asarray(split.sentence_offsets)[:-1][lengths <= 9]
    for ids, start in ((sentences[0], starts[0]), (sentences[-1], starts[-1])):
        np.testing.assert_array_equal(ids, split.token_ids[start : start + len(ids)])
    assert choose_sentences(split, 0) == []


def test_a_time_that_was_not_measured_is_a_least_one():
    rows = [
        plan.StudyRowPlan("a", RowCost(1e9, 1e18), 7.0, True),
        plan.StudyRowPlan("b", RowCost(0, 0), 0, False),
    ]
    assert plan.describe_total(rows).startswith("training takes 0:07 here")
    late = dataclasses.replace(rows[0], is_measured=False)
    assert plan.describe_total([late]).startswith("training takes at least 0:07")


@pytest.mark.long
def test_short_steps_are_measured(tiny_store):
    cost = RowCost(1.0, 5e6)  # of five steps
    assert plan.measure_run(BERT, str(tiny_store), 9e5, cost) is None
    secs = plan.measure_run(BERT, str(tiny_store), 1.1e6, cost)
    assert 5e-4 < secs < 5
    count = build_steps(SKIPGRAM, str(tiny_store)).count
    cost, store = RowCost(1.0, 10.0 * count), str(tiny_store)
    assert plan.measure_run(SKIPGRAM, store, 9.0, cost) is None
    assert 1e-5 * count < plan.measure_run(SKIPGRAM, store, 11.0, cost) < count
    study = StudyConfig(rows=(SKIPGRAM,), store=store)
    assert plan.plan_row(study, SKIPGRAM, RowCost(1.0, 10.0), 1e9, SILENT).is_measured


@pytest.mark.long
def test_a_study_runs_to_its_table_and_leaves_every_device_to_its_runs(tiny_store, tmp_path):
    file = tmp_path / "tiny.py"
    file.write_text(
        "from bert_jax.config import to_config_dict\n"
        "from bert_jax.lab.study_config import StudyConfig, StudyRow\n"
        f"def get_config(): return to_config_dict(StudyConfig(rows=({BERT},), seeds=1))\n"
    )
    flags = [f"--config={file}", f"--config.store={tiny_store}", "--config.seq_len=16"]
    code = (
        "import sys; from jax._src import xla_bridge; from bert_jax import study\n"
        "code = study.main(sys.argv[1:])\n"
        "sys.exit(77 if xla_bridge.backends_are_initialized() else code)\n"
    )
    command = [sys.executable, "-c", code, *flags, f"--workdir={tmp_path / 'study'}"]
    subprocess.run(command, check=True)
    rows = json.loads((tmp_path / "study" / report.NUMBERS).read_text())["rows"]
    loss = rows[0]["measures"][MASKED_WORDS]["mean"]
    assert 3 < loss < 7  # ln 200 is 5.3
    perplexity = rows[0]["measures"][PSEUDO_PERPLEXITY]["mean"]
    assert 20 < perplexity < 500  # of a model that knows nothing it is 200
    assert len(list((tmp_path / "study").glob("*.log"))) == 1
