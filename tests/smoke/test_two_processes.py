"""Two processes of one device each train the run that one process trains alone."""

import pytest

from tests.faults.runs import TINY, lines_of, training
from tests.smoke.test_train import run


def losses_of(workdir):
    names = ("mlm_loss", "unigram_mlm_loss", "majority_nsp_accuracy")
    return {
        (line["step"], line["split"], name): line[name]
        for line in lines_of(workdir)
        for name in names
        if name in line
    }


def test_two_processes_train_as_one_on_packed_rows(tiny_store, tmp_path):
    flags = [*TINY, f"--config.data.store={tiny_store}", "--config.phases[0].steps=20"]
    flags += ["--config.mesh.preset=zero1", "--config.log_every_steps=5"]
    flags += ["--config.optim.warmup_steps=5", "--config.phases[1].seq_len=48"]
    flags += ["--config.phases[1].max_predictions_per_seq=7"]
    flags += ["--config.data.packed_examples=2", "--config.data.short_seq_prob=0.5"]
    with training(*flags, workdir=tmp_path / "two", processes=2) as running:
        running.finish()
    run(*flags, f"--workdir={tmp_path / 'one'}")
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), rel=1e-4)
    assert (tmp_path / "two" / "checkpoints" / "30").is_dir()
