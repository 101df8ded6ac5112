"""What the card of an exported model says of where it comes from."""

import dataclasses
import json

import pytest

from bert_jax import model_card, pretrained, receipt
from bert_jax.config import Config, Phase
from bert_jax.feed import Feed, open_store
from data_pipeline.options import PretrainOptions
from tests.bert_jax.small_checkpoints import tensors, write


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return pretrained.load(str(write(tmp_path_factory.mktemp("given"), tensors())))


def test_a_run_says_what_it_learned_from(held, tiny_store, tmp_path):
    phases = (Phase(seq_len=19, steps=1100, batch_size=16), Phase(seq_len=23, steps=7))
    config = Config(data=PretrainOptions(store=str(tiny_store)), phases=phases)
    store = open_store(config.data)
    receipt.write(tmp_path, Feed(store, config))
    numbers = {"steps": 1100, "heldout_mlm_loss": 2.3456, "majority_nsp_accuracy": 0.5}
    (tmp_path / "summary.json").write_text(json.dumps(numbers))
    of_a_run = dataclasses.replace(held, address=f"orbax:{tmp_path}")
    card = model_card.text(of_a_run, "mine", (), can_tokenise=True)
    assert f"exported by bert_jax from its run `{tmp_path.name}`" in card
    assert "| planned | 1,107 steps: 1,100 steps of 16 rows of 19 tokens; then 7 steps of" in card
    assert f"| text | the store `store`, digest {store.digest[:12]} |" in card
    assert "| steps made | 1,100 |" in card
    assert "| held out: MLM loss, nats | 2.346 |" in card
    assert "| held out: the same of the commoner label | 50.0% |" in card
    assert str(tmp_path) not in card
    # What the end of a run scored says nothing of an earlier checkpoint.
    earlier, last = (
        model_card.text(
            dataclasses.replace(held, address=f"orbax:{tmp_path}@{step}"), "mine", (), True
        )
        for step in (40, 1100)
    )
    assert f"its run `{tmp_path.name}@40`" in earlier
    assert "| planned | 1,107 steps" in earlier and "held out" not in earlier
    assert "| held out: MLM loss, nats | 2.346 |" in last


def test_rules_that_no_tokenizer_json_can_say_are_said(held):
    card = model_card.text(held, "mine", ("mlm",), can_tokenise=False)
    assert "cut text with the library sentencepiece and `vocab.model`" in card
    assert "AutoTokenizer" not in card
    assert "drawn at random for this export: mlm." in card
    assert "## Training" not in card
