"""The replay entry as a person runs it, on a workdir that has the receipt of a run."""

import functools
import json
import shutil

import pytest

from bert_jax import receipt
from bert_jax.config import Config, Phase
from bert_jax.feed import STORE_DIGEST, Feed, open_store
from data_pipeline.options import PretrainOptions

PHASES = (
    Phase(seq_len=16, steps=9, batch_size=16, max_predictions_per_seq=3),
    Phase(seq_len=24, steps=4, batch_size=8, max_predictions_per_seq=4),
)


@pytest.fixture(scope="module")
def workdir(tiny_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    config = Config(phases=PHASES, data=PretrainOptions(store=str(tiny_store)))
    receipt.write(folder, Feed(open_store(config.data), config))
    return folder


@pytest.fixture
def replay(forked):
    """The entry, from one that has its imports already."""
    return functools.partial(forked, "bert_jax.replay")


def test_rows_of_a_step(replay, workdir):
    out = replay(f"--workdir={workdir}", "--step=11", "--rows=2").stdout
    lines = out.splitlines()
    assert lines[0] == "step 11 of 13: phase 1, 8 rows of 24, 8 to 15 of its stream"
    assert lines[1].startswith("row 8: epoch 0, index 8; label ")
    assert lines[2].startswith("  A  [CLS] ") and lines[3].startswith("  B  ")
    assert "[MASK->" in out and out.count("row ") == 2
    everything = replay(f"--workdir={workdir}", "--step=11", "--rows=all").stdout
    assert everything.startswith(out) and everything.count("[CLS]") == 8


def test_a_store_that_was_moved(replay, workdir, tiny_store, tmp_path):
    shutil.copytree(tiny_store, tmp_path / "moved")
    lost = tmp_path / "run"
    shutil.copytree(workdir, lost)
    shown = json.loads((lost / "config.json").read_text())
    shown["config"]["data"]["store"] = str(tmp_path / "gone")
    (lost / "config.json").write_text(json.dumps(shown))
    assert "gone" in replay(f"--workdir={lost}", "--step=1", code=2).stderr
    moved = replay(f"--workdir={lost}", "--step=1", f"--store={tmp_path / 'moved'}").stdout
    assert moved == replay(f"--workdir={workdir}", "--step=1").stdout


def test_the_bad_steps_of_a_run(replay, workdir):
    assert replay(f"--workdir={workdir}", "--bad").stdout == "no step was bad\n"
    rows = {"first": 96, "last": 111, "epochs": [{"epoch": 0, "first_index": 96}]}
    line = {"step": 7, "phase": 0, "reason": "mlm/loss_sum is nan", "rows": rows}
    left = {"after_step": 5, "through_step": 7, "reason": "mlm/loss_sum is nan"}
    (workdir / "bad_steps.jsonl").write_text(json.dumps(line) + "\n")
    (workdir / "left_out.json").write_text(json.dumps([left]))
    first, second = replay(f"--workdir={workdir}", "--bad").stdout.splitlines()
    assert first.startswith("step 7: mlm/loss_sum is nan; rows 96 to 111 of phase 0's stream")
    assert second == "steps 6 to 7 were left out: mlm/loss_sum is nan"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--step=1"], "--workdir is missing"),
        (["--workdir=nowhere", "--step=1"], "nowhere holds no run of bert_jax"),
        (["--workdir={}"], "--step is missing: a step from 1 to 13, or --bad"),
        (["--workdir={}", "--step=14"], "--step is 14; the run of "),
        (["--workdir={}", "--step=0"], "has steps 1 to 13"),
        (["--workdir={}", "--step=1", "--rows=some"], "--rows is 'some'; it must be 1 or more"),
        (["--workdir={}", "--step=1", "--rows=0"], "--rows is '0'"),
        (["--workdir={}", "stray"], "'stray' is not a flag"),
    ],
)
def test_mistakes_get_one_sentence(replay, workdir, flags, words):
    err = replay(*[flag.format(workdir) for flag in flags], code=2).stderr
    assert err.startswith("error: ") and words in err and err.count("\n") == 1


def test_another_store_is_refused(replay, workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "run")
    shown = json.loads((tmp_path / "run" / "config.json").read_text())
    shown["fixed"][STORE_DIGEST] = "0" * 12
    (tmp_path / "run" / "config.json").write_text(json.dumps(shown))
    err = replay(f"--workdir={tmp_path / 'run'}", "--step=1", code=2).stderr
    assert "is not the store that the run of" in err
