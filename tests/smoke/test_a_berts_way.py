"""A BERT from its pre-training to its uses, each by its command, on one run."""

import json
import shutil

import numpy as np
import pytest

from bert_jax.lab import probe
from bert_jax.logging import metrics_writer
from bert_jax.logging.metrics_writer import PROBE_SCORES
from bert_jax.trainer.feed import STORE_DIGEST

pytestmark = pytest.mark.long

SENTENCES = ["the cat sees a dog in the garden .", "a green bird", "my sister hears"]
TASK = ["--config=configs/finetune/table.py", "--config.data.text_column=text"]
TASK += ["--config.data.label_column=is_long", "--config.batch_size=8"]
TITLE = "\x1b]0;x\x07"  # sets the title of a terminal's window


@pytest.fixture(scope="module")
def exported(forked, trained, tmp_path_factory):
    """The same in Hugging Face's format, and vectors from there."""
    folder = tmp_path_factory.mktemp("way")
    forked("bert_jax.convert", f"--from=orbax:{trained}", f"--to=hf:{folder / 'export'}")
    (folder / "sentences.txt").write_text("\n".join(SENTENCES) + "\n")
    flags = vectors_of(folder, "from_export")
    forked("bert_jax.features", f"--checkpoint=hf:{folder / 'export'}", *flags)
    return folder


def vectors_of(folder, name):
    return [f"--input={folder / 'sentences.txt'}", f"--output={folder / name}.npz", "--pool=mean"]


def test_it_is_fine_tuned_from_its_export(forked, exported, small, tmp_path):
    given = [f"--config.init=hf:{exported / 'export'}", f"--config.data.dir={small}"]
    forked("bert_jax.finetune", *TASK, "--config.epochs=2", *given, f"--workdir={tmp_path / 't'}")
    summary = json.loads((tmp_path / "t" / "summary.json").read_text())
    assert summary["steps"] == 10
    assert 0.0 <= summary["heldout_dev_accuracy"] <= 1.0
    assert list((tmp_path / "t" / "predictions").iterdir())
    record = json.loads((tmp_path / "t" / "run.json").read_text())
    assert record["config"]["data"]["max_seq_length"] == 64  # the positions of the model


def test_it_is_scored_on_rows_of_its_own_length(forked, trained, tmp_path):
    scores = tmp_path / "scores.jsonl"
    forked("bert_jax.evaluate", f"--checkpoint={trained}", "--examples=16", f"--output={scores}")
    assert json.loads(scores.read_text())["seq_len"] == 64


def test_its_vectors_are_those_of_the_run(forked, trained, exported):
    given = vectors_of(exported, "from_run")
    forked("bert_jax.features", f"--checkpoint=orbax:{trained}", *given)
    vectors = [np.load(exported / f"{name}.npz")["vectors"] for name in ("from_run", "from_export")]
    assert vectors[0].shape == (len(SENTENCES), 32)
    np.testing.assert_array_equal(*vectors)


def test_guesses_stand_under_each_sentence(forked, trained):
    sentences = ["The [MASK] sees a dog.", TITLE + "[MASK] [MASK]"]
    done = forked("bert_jax.fill_mask", f"--checkpoint={trained}", "--top=3", *sentences)
    lines = done.stdout.splitlines()
    assert lines[0] == "The [MASK] sees a dog."
    assert lines[2] == r"\x1b]0;x[MASK] [MASK]"  # shown, and not obeyed
    assert len(lines) == 5
    assert all(line.count("%") == 3 for line in lines if "[MASK]" not in line)
    assert done.stderr == ""


def test_heldout_sentences_come_with_their_answers(forked, trained):
    given = (f"--checkpoint={trained}", "--heldout=2", "A dog [MASK] the cat.")
    lines = forked("bert_jax.fill_mask", *given).stdout.splitlines()
    assert len(lines) == 6
    assert ["it was: " in line for line in lines[1::2]] == [False, True, True]


def copy_with(trained, folder, change):
    """Copy the run's records, and its checkpoints, with a change of run.json."""
    shutil.copytree(trained, folder)
    record = json.loads((folder / "run.json").read_text())
    change(record)
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_a_report_shows_guesses_or_says_why_there_are_none(forked, trained, tmp_path):
    page = tmp_path / "report.html"
    said = forked("bert_jax.report", str(trained), "--guesses=2", f"--output={page}").stdout
    assert said.count("it was: ") == page.read_text().count("it was: ") == 2
    lost = tmp_path / "lost"
    shutil.copytree(trained, lost, ignore=shutil.ignore_patterns("checkpoints"))
    assert "no guesses: " in forked("bert_jax.report", str(lost), "--guesses=2").stdout


def test_another_store_in_the_place_of_the_runs_is_refused(forked, trained, tmp_path):
    other = copy_with(trained, tmp_path / "a", lambda record: record["fixed"].update(OTHER))
    said = forked("bert_jax.fill_mask", f"--checkpoint={other}", "--heldout=1", code=2).stderr
    assert "is not the store that the run of" in said and "ask your own sentences" in said
    said = forked("bert_jax.replay", f"--workdir={other}", "--step=1", code=2).stderr
    assert "is not the store that the run of" in said
    said = forked("bert_jax.evaluate", f"--checkpoint={other}", code=2).stderr
    assert "is not the store that the run of" in said and "give the store to score as" in said


OTHER = {STORE_DIGEST: "0" * 12}


def test_rows_of_a_step_are_shown_also_of_a_store_that_was_moved(
    forked, trained, tiny_store, tmp_path
):
    out = forked("bert_jax.replay", f"--workdir={trained}", "--step=11", "--rows=2").stdout
    lines = out.splitlines()
    assert lines[0] == "step 11 of 40: phase 0, 8 rows of 16, 80 to 87 of its stream"
    assert lines[1].startswith("row 80: epoch 0, index 80; label ")
    assert lines[2].startswith("  A  [CLS] ") and lines[3].startswith("  B  ")
    assert "[MASK->" in out and out.count("row ") == 2
    everything = forked("bert_jax.replay", f"--workdir={trained}", "--step=11", "--rows=all").stdout
    assert everything.startswith(out) and everything.count("[CLS]") == 8
    gone = {"store": str(tmp_path / "gone")}
    lost = copy_with(trained, tmp_path / "a", lambda record: record["config"]["data"].update(gone))
    given = (f"--workdir={lost}", "--step=11", "--rows=2")
    assert "gone" in forked("bert_jax.replay", *given, code=2).stderr
    moved = shutil.copytree(tiny_store, tmp_path / "moved")
    assert forked("bert_jax.replay", *given, f"--store={moved}").stdout == out


def test_the_bad_steps_of_a_run(forked, trained, tmp_path):
    workdir = copy_with(trained, tmp_path / "run", dict)
    assert forked("bert_jax.replay", f"--workdir={workdir}", "--bad").stdout == "no step was bad\n"
    rows = {"first": 96, "last": 111, "epochs": [{"epoch": 0, "first_index": 96}]}
    line = {"step": 7, "phase": 0, "reason": "mlm_loss is nan", "rows": rows}
    left = {"after_step": 5, "through_step": 7, "reason": "mlm_loss is nan"}
    (workdir / "bad_steps.jsonl").write_text(json.dumps(line) + "\n")
    (workdir / "left_out.json").write_text(json.dumps([left]))
    out = forked("bert_jax.replay", f"--workdir={workdir}", "--bad").stdout
    first, second = out.splitlines()
    assert first.startswith("step 7: mlm_loss is nan; rows 96 to 111 of phase 0's stream")
    assert second == "steps 6 to 7 were skipped: mlm_loss is nan"


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_each_checkpoint_gets_its_score_and_the_run_is_only_read(forked, trained, small):
    before = files_of(trained)
    arguments = [*TASK, "--config.epochs=1", f"--config.data.dir={small}"]
    arguments += [f"--workdir={trained}", "--every=20"]
    done = forked("bert_jax.study", "probe", *arguments)
    assert files_of(trained) == before
    folder = trained.with_name("run-probe")
    lines = [json.loads(line) for line in (folder / PROBE_SCORES).read_text().splitlines()]
    assert [line["step"] for line in lines] == [40, 20]
    assert all(0.0 <= line["score"] <= 1.0 for line in lines)
    for step in (20, 40):
        began_with = json.loads((folder / f"step-{step}" / "run.json").read_text())
        assert began_with["config"]["init"] == f"orbax:{trained}@{step}"
        assert (folder / f"step-{step}" / metrics_writer.SUMMARY).exists()
        assert not (folder / f"step-{step}" / "checkpoints").exists()
    assert (folder / probe.PICTURE).exists()
    assert "the run has ended" in done.stdout
    again = forked("bert_jax.study", "probe", *arguments)
    assert "2 checkpoints have their score" in again.stdout
    assert (folder / PROBE_SCORES).read_text().count("\n") == 2
