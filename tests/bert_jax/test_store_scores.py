"""Whose settings a store is scored with, and a store that cannot give such examples."""

import dataclasses

import numpy as np
import pytest

from bert_jax import masked_lm, pretrained, receipt, store_scores
from bert_jax.config import Config, Phase
from bert_jax.exit_codes import Refused
from bert_jax.feed import Feed, open_store
from bert_jax.screen import Screen
from bert_jax.store_scores import Asked
from data_pipeline.options import PretrainOptions
from tests.bert_jax.small_checkpoints import tensors, write


@pytest.fixture(scope="module")
def config(tiny_store):
    options = PretrainOptions(store=str(tiny_store), segments="sop")
    return Config(data=options, phases=(Phase(seq_len=19, steps=40, batch_size=16),))


def test_settings_are_those_of_the_run_whichever_of_its_checkpoints_is_scored(config, tmp_path):
    receipt.write(tmp_path, Feed(open_store(config.data), config))
    for address in (f"orbax:{tmp_path}", f"orbax:{tmp_path}@40", str(tmp_path)):
        found = store_scores.settings_of(address)
        assert found is not None and found.data == config.data
    checkpoint = write(tmp_path / "hf", tensors())
    assert store_scores.settings_of(f"hf:{checkpoint}") is None


def test_a_store_without_held_out_text_is_refused_in_a_sentence(config, tmp_path):
    store = open_store(config.data)
    nothing = dataclasses.replace(
        store.heldout, token_ids=store.heldout.token_ids[:0], document_offsets=np.zeros(1, np.int64)
    )
    asked = Asked(dataclasses.replace(store, heldout=nothing), "heldout", config.data, 19, 64)
    model = masked_lm.on_devices(pretrained.load(str(write(tmp_path, tensors()))))
    with pytest.raises(Refused, match=r"split heldout is empty; it needs a document"):
        store_scores.scores(model, asked, 8, Screen(is_writer=False))
