"""Two processes of one device each begin a run and are stopped; one goes on as if it were alone."""

import json
import signal

import pytest

from bert_jax.exit_codes import BY_SIGNAL
from tests.faults.runs import TINY, saved_steps, training


def losses_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    names = ("mlm_loss", "unigram_mlm_loss", "majority_nsp_accuracy")
    return {
        (line["step"], line["split"], name): line[name]
        for line in lines
        for name in names
        if name in line
    }


@pytest.mark.fault(8, "SIGTERM to one of two processes in training; one alone then goes on")
def test_two_processes_train_as_one_on_packed_rows(tiny_store, tmp_path):
    flags = [*TINY, f"--config.data.store={tiny_store}", "--config.phases[0].steps=30"]
    flags += ["--config.mesh.preset=zero1", "--config.log_every_steps=5"]
    flags += ["--config.optim.warmup_steps=5", "--config.phases[1].seq_len=48"]
    flags += ["--config.phases[1].max_predictions_per_seq=7"]
    flags += ["--config.data.packed_examples=2", "--config.data.short_seq_prob=0.5"]
    two, one = tmp_path / "two", tmp_path / "one"
    with training(*flags, workdir=two, processes=2) as run:
        run.wait_for_step(5)
        run.signal(signal.SIGTERM, 1)
        said = run.finish(BY_SIGNAL + signal.SIGTERM)
        assert "process 1" not in said and "pre-training in" not in run.output(1)
    step = saved_steps(two)[-1]
    assert step < 40 and f"stopped and saved at step {step}; to go on from there:" in said
    with training(*flags, workdir=two) as run:
        assert f"resuming at step {step} of 40" in run.finish()
    with training(*flags, workdir=one) as run:
        run.finish()
    assert losses_of(two) == pytest.approx(losses_of(one), rel=1e-4)
    assert saved_steps(two)[-1] == 40
