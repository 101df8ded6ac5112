"""Other people's records from end to end: exported, imported, and trained on."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.config import Config, EvalConfig, OptimConfig, Phase
from bert_jax.trainer import loop
from bert_jax.trainer.setup import build_setup
from data_pipeline import export_tfrecord, import_tfrecord
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store
from tests.bert_jax.tiny_models import MODEL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tiny_store, tmp_path_factory):
    """A run on ready-made examples of 16 and of 24 tokens."""
    folder = tmp_path_factory.mktemp("records")
    for seq_len, slots in ((16, 3), (24, 4)):
        sizes = [f"--seq_len={seq_len}", f"--max_predictions_per_seq={slots}", "--epochs=1"]
        output = f"--output={folder / str(seq_len)}"
        flags = [f"--store={tiny_store}", output, *sizes, "--shards=2", "--workers=1"]
        assert export_tfrecord.main(flags) == 0
    flags = [f"--input={folder}/*/*.tfrecord", f"--vocab={folder}/16/vocab.txt", "--holdout=0.1"]
    assert import_tfrecord.main([*flags, f"--output={folder / 'store'}"]) == 0
    return Config(
        model=dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1),
        phases=(Phase(seq_len=16, steps=40, batch_size=16, max_predictions_per_seq=3),),
        optim=OptimConfig(learning_rate=3e-3, warmup_steps=2),
        data=PretrainOptions(store=str(folder / "store")),
        eval=EvalConfig(every_steps=100, examples=32),
    )


def test_a_run_on_records_learns_and_says_what_it_learns_from(config, tmp_path, capsys):
    setup = build_setup(config, tmp_path, jax.devices()[:1])
    summary = loop.train(setup)
    # A model that knows nothing guesses each of 200 pieces with log 200 nats.
    assert summary["heldout_mlm_loss"] < np.log(200) - 0.1
    splits = open_store(config.data.store).manifest["splits"]
    shown = capsys.readouterr().out
    assert f"{splits['train']['examples']:,} ready-made examples in" in shown
    assert f"{splits['heldout']['examples']:,} more examples are held out" in shown


def test_a_phase_of_another_length_is_refused(config, tmp_path):
    longer = dataclasses.replace(config.phases[0], seq_len=20)
    other = dataclasses.replace(config, phases=(*config.phases, longer))
    with pytest.raises(
        ValueError, match=r"examples of 16 tokens with .* and 24 tokens with .*: set --seq_len"
    ):
        build_setup(other, tmp_path, jax.devices()[:1])
