"""The probe entry as a person runs it, beside a run that the train entry made."""

import json
import subprocess
import sys

import pytest

from bert_jax import log, probing
from tests.faults.runs import ONE_PHASE, ROOT, environment

TABLE = ["--config=configs/finetune/table.py", "--config.data.text_column=text"]
SHORT = [*TABLE, "--config.data.label_column=is_long", "--config.epochs=1"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Forty sentences of two kinds."""
    folder = tmp_path_factory.mktemp("table")
    rows = ["text\tis_long"]
    rows += [f"the cat sees {'a dog in the garden' if i % 2 else 'it'}\t{i % 2}" for i in range(40)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def workdir(forked, tiny_store, tmp_path_factory):
    """A run that has ended, with checkpoints of steps 0, 20 and 40."""
    folder = tmp_path_factory.mktemp("probed") / "run"
    flags = [*ONE_PHASE, "--config.checkpoint.every_steps=20"]
    forked("bert_jax.train", *flags, f"--config.data.store={tiny_store}", f"--workdir={folder}")
    return folder


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.long
def test_each_checkpoint_gets_its_score_and_the_run_is_only_read(forked, workdir, table):
    before = files_of(workdir)
    arguments = [*SHORT, f"--config.data.dir={table}", f"--workdir={workdir}", "--every=40"]
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.probe", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert files_of(workdir) == before
    folder = workdir.with_name("run-probe")
    lines = [json.loads(line) for line in (folder / probing.LINES).read_text().splitlines()]
    assert [line["step"] for line in lines] == [40, 0]  # 20 is less than --every from both
    assert all(0.0 <= line["score"] <= 1.0 for line in lines)
    for step in (0, 40):
        began_with = json.loads((folder / f"step-{step}" / "config.json").read_text())
        assert began_with["config"]["init"] == f"orbax:{workdir}@{step}"
        assert (folder / f"step-{step}" / log.SUMMARY).exists()
        assert not (folder / f"step-{step}" / "checkpoints").exists()
    assert (folder / probing.PICTURE).exists()
    assert "the run has ended" in done.stdout
    again = forked("bert_jax.probe", *arguments)
    assert "2 checkpoints have their score" in again.stdout
    assert (folder / probing.LINES).read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--workdir is missing"),
        (["--workdir={}", "--every=0"], "--every is 0; it must be 1 or more"),
        (["--workdir=gs://bucket/run"], "--probe_dir is missing, and gs://bucket/run is a bucket"),
        (["--workdir={}", *SHORT, "--config.init=hf:there"], "config.init is hf:there; a probe"),
        (["--workdir={}", *SHORT], "{} holds no run of bert_jax"),
        (["--workdir={}"], "--config is missing"),
    ],
)
def test_mistakes_get_one_sentence(forked, tmp_path, arguments, words):
    given = (argument.format(tmp_path) for argument in arguments)
    said = forked("bert_jax.probe", *given, code=2).stderr
    assert said.startswith("error: ") and words.format(tmp_path) in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
