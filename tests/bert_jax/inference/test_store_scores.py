"""Whose settings a store is scored with, and a store that cannot give such examples."""

import dataclasses

import numpy as np
import pytest

from bert_jax.config import Config, Phase
from bert_jax.inference import store_scores
from bert_jax.inference.store_scores import ScoredRows
from bert_jax.interop import load, pretrained
from bert_jax.logging.console import Screen
from bert_jax.runtime import run_record
from bert_jax.trainer.feed import open_store
from data_pipeline import export_tfrecord, import_tfrecord
from data_pipeline.io import Refused
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.small_checkpoints import tensors, write
from tests.bert_jax.tiny_models import config_and_data


@pytest.fixture(scope="module")
def config(tiny_store):
    options = PretrainOptions(store=str(tiny_store), segments="sop")
    return Config(data=options, phases=(Phase(seq_len=19, steps=40, batch_size=16),))


def test_settings_are_those_of_the_run_whichever_of_its_checkpoints_is_scored(config, tmp_path):
    run_record.write(tmp_path, *config_and_data(config))
    for address in (f"orbax:{tmp_path}", f"orbax:{tmp_path}@40", str(tmp_path)):
        run = load.read_run(address)
        assert run is not None and run.config.data == config.data
    checkpoint = write(tmp_path / "hf", tensors())
    assert load.read_run(f"hf:{checkpoint}") is None


def test_a_store_without_held_out_text_is_refused_in_a_sentence(config, tmp_path):
    store = open_store(config.data)
    nothing = dataclasses.replace(
        store.heldout, token_ids=store.heldout.token_ids[:0], document_offsets=np.zeros(1, np.int64)
    )
    asked = ScoredRows(dataclasses.replace(store, heldout=nothing), "heldout", config.data, 19, 64)
    model = pretrained.place_masked_lm(load.load(str(write(tmp_path, tensors()))))
    with pytest.raises(Refused, match=r"split heldout has too little text \(documents: 0,"):
        store_scores.score_store(model, asked, 8, Screen(is_writer=False))


@pytest.mark.slow
def test_scores_that_are_not_finite_are_refused_as_json_has_none(config, tmp_path):
    arrays = tensors()
    arrays["bert.embeddings.LayerNorm.weight"] = np.full(14, np.nan, np.float32)
    model = pretrained.place_masked_lm(load.load(str(write(tmp_path, arrays))))
    asked = ScoredRows(open_store(config.data), "heldout", config.data, 19, 8)
    with pytest.raises(Refused, match="computes infinities or NaN; give an earlier one"):
        store_scores.score_store(model, asked, 8, Screen(is_writer=False))


@pytest.mark.slow
def test_ready_made_examples_are_scored_whatever_slots_they_have(tiny_store, tmp_path):
    """15% of 16 tokens are 3 slots; NVIDIA's records of 512 have 80, where 15% are 77."""
    records, store = tmp_path / "records", tmp_path / "store"
    flags = ["--seq_len=16", "--max_predictions_per_seq=5", "--epochs=1", "--shards=1"]
    flags += [f"--store={tiny_store}", f"--output={records}", "--workers=1"]
    assert export_tfrecord.main(flags) == 0
    flags = [f"--input={records}/*.tfrecord", f"--vocab={records}/vocab.txt", "--holdout=0.1"]
    assert import_tfrecord.main([*flags, f"--output={store}"]) == 0
    options = PretrainOptions(store=str(store))
    model = pretrained.place_masked_lm(load.load(str(write(tmp_path / "hf", tensors()))))
    asked = ScoredRows(open_store(options), "heldout", options, 16, 8)
    scores = store_scores.score_store(model, asked, 8, Screen(is_writer=False))
    assert scores["examples"] == 8 and np.isfinite(scores["mlm_loss"])
