"""Whose settings a store is scored with."""

import pytest

from bert_jax import receipt, store_scores
from bert_jax.config import Config, Phase
from bert_jax.feed import Feed, open_store
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
