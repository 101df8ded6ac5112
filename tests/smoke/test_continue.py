"""A tiny ModernBERT is continued on another store with replay."""

import json

import numpy as np
import pytest

from bert_jax.interop import load
from data_pipeline import build
from tests.conftest import _small_text
from tests.faults.runs import lines_of

pytestmark = pytest.mark.long

SMALL = [
    "--config=configs/first_phase.py:configs/quickstart.py:model=modernbert",
    *("--config.model.hidden_size=32", "--config.model.intermediate_size=48"),
    *("--config.phases[0].steps=20", "--config.phases[0].batch_size=8"),
    *("--config.optim.warmup_steps=5", "--config.eval.examples=16"),
]
# A constant rate, and the decay.
CONTINUED = [
    "--config=configs/continue.py:family=ettin,replay=0.25",
    *(f"--config.phases[{i}].seq_len=32" for i in range(2)),
    *(f"--config.phases[{i}].steps=5" for i in range(2)),
    *(f"--config.phases[{i}].batch_size=4" for i in range(2)),
    *(f"--config.phases[{i}].micro_batches=1" for i in range(2)),
    *("--config.optim.warmup_steps=2", "--config.eval.examples=16"),
    "--config.data.packed_examples=4",
]


def test_a_modernbert_is_continued_with_replay(tiny_store, tmp_path, forked):
    general, run, out = tmp_path / "general", tmp_path / "run", tmp_path / "continued"
    (tmp_path / "text.txt").write_text(_small_text(100))
    arguments = [f"--input={tmp_path / 'text.txt'}", f"--vocab={tiny_store / 'vocab.txt'}"]
    assert build.main([*arguments, f"--output={general}", "--holdout=0.1", "--workers=1"]) == 0
    forked("bert_jax.train", *SMALL, f"--config.data.store={general}", f"--workdir={run}")
    given = [f"--config.init=orbax:{run}", f"--config.data.store={tiny_store},{general}"]
    done = forked("bert_jax.train", *CONTINUED, *given, f"--workdir={out}")
    assert f"from orbax:{run}" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert summary["steps"] == 10 and np.isfinite(summary["heldout_mlm_loss"])
    last = [line for line in lines_of(out) if line["split"] == "heldout"][-1]
    assert {"mlm_loss/store", "mlm_loss/general"} <= last.keys()
    model = load.load(str(out)).config
    assert not model.is_causal and model.max_position_embeddings == 1024
    scored = [f"--checkpoint={out}", f"--store={general}", "--seq_len=16", "--examples=8"]
    assert "mlm" in forked("bert_jax.evaluate", *scored).stdout  # one store of the mixture
