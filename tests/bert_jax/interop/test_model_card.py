"""What the card of an exported model says of where it comes from."""

import dataclasses
import json

import numpy as np
import pytest

from bert_jax.config import Config, Phase
from bert_jax.interop import hub, load, model_card
from bert_jax.runtime import run_record
from bert_jax.tasks.task import CLASSIFY, TAG
from bert_jax.tasks.task_layer import TaskLayer
from bert_jax.trainer.feed import open_store
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.byte_level import train_byte_level
from tests.bert_jax.small_checkpoints import tensors, write
from tests.bert_jax.tiny_models import config_and_data


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return load.load(str(write(tmp_path_factory.mktemp("given"), tensors())))


def test_a_run_says_what_it_learned_from(held, tiny_store, tmp_path, monkeypatch):
    phases = (Phase(seq_len=19, steps=1100, batch_size=16), Phase(seq_len=23, steps=7))
    config = Config(data=PretrainOptions(store=str(tiny_store)), phases=phases)
    run_record.write(tmp_path, *config_and_data(config), parts={"untrained": []})
    numbers = {"steps": 1100, "heldout_mlm_loss": 2.3456, "majority_nsp_accuracy": 0.5}
    (tmp_path / "summary.json").write_text(json.dumps(numbers))

    def render(place):
        of_a_run = dataclasses.replace(held, address=f"orbax:{place}")
        return model_card.render(of_a_run, "mine", ("mlm",), (), has_tokenizer=False)

    for card in (render(tmp_path), render(f"{tmp_path}@1100")):
        assert "| planned | 1,107 steps: 1,100 steps of 16 rows of 19 tokens; then 7 steps" in card
        assert f"digest {open_store(config.data).digest[:12]} |" in card
        assert "| steps made | 1,100 |" in card
        assert "| held out: MLM loss, nats | 2.346 |" in card
        assert "| held out: always the more frequent label | 50.0% |" in card
        assert str(tmp_path) not in card
        assert "initialized at random for this export: mlm." in card
        assert "AutoTokenizer" not in card and "`vocab.model`" in card
    # What the end of a run scored says nothing of an earlier checkpoint.
    earlier = render(f"{tmp_path}@40")
    assert f"its run `{tmp_path.name}@40`" in earlier
    assert "| planned | 1,107 steps" in earlier and "held out" not in earlier
    monkeypatch.chdir(tmp_path)
    assert f"its run `{tmp_path.name}`." in render(".")
    record = json.loads((tmp_path / "run.json").read_text())
    record["config"]["data"]["store"] = "<img src=x>|`"
    record["config"]["optim"]["name"] = "<b>lamb"
    (tmp_path / "run.json").write_text(json.dumps(record))
    card = render(tmp_path)
    assert r"the store \<img src=x>\|\`, digest" in card and r"| optimizer | \<b>lamb," in card


def test_a_model_of_the_hub_goes_by_its_name_there(held, monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "fetch", lambda place: tmp_path / "snapshots" / "86b5e093")
    downloaded = dataclasses.replace(held, address="hf:google-bert/bert-base@main")
    card = model_card.render(downloaded, "mine", (), (), has_tokenizer=True)
    assert "from the Hugging Face model `google-bert/bert-base@main`" in card
    assert "86b5e093" not in card


def test_a_tagger_says_how_its_tokenizer_reads_words(held, tmp_path):
    layer = {"kernel": np.zeros((14, 3), np.float32), "bias": np.zeros(3, np.float32)}
    params = held.params | {"classifier": layer}
    tagger = dataclasses.replace(
        held, task=TaskLayer("NER", TAG, ("O", "B-X", "I-X")), params=params
    )
    card = model_card.render(tagger, "mine", (), (), has_tokenizer=True)
    assert "tokenizer(' '.join(words)," in card and "is_split_into_words" not in card
    data = json.loads(train_byte_level(["a cat sees the dog"] * 3, 270, 0))
    for adds_space in (True, False):
        splitter = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
        data["pre_tokenizer"] = splitter | {"add_prefix_space": adds_space}
        (tmp_path / "tokenizer.json").write_text(json.dumps(data))
        words = load_vocabulary(tmp_path / "tokenizer.json")
        card = model_card.render(
            dataclasses.replace(tagger, vocabulary=words), "mine", (), (), has_tokenizer=True
        )
        assert ("tokenizer(' ' + ' '.join(words)," in card) == (not adds_space)
        assert ("is_split_into_words" in card) == (not adds_space)


def test_a_causal_model_goes_on_with_a_text_instead_of_beginning_one(held):
    """[SEP] at the end of a prompt is the end of its text."""
    causal = dataclasses.replace(held, config=dataclasses.replace(held.config, is_causal=True))
    card = model_card.render(causal, "mine", (), (), has_tokenizer=True)
    assert "['input_ids'][:, :-1]\n    outputs = model.generate(ids, max_new_tokens=20)\n" in card
    assert "generate" not in model_card.render(held, "mine", (), (), has_tokenizer=True)


def test_names_of_a_table_are_text_in_the_card(held):
    labels = ("a|b", "<img src=x>", "[x](http://y)", "`q`", "two\nlines", "not_entailment")
    task = TaskLayer("<b>Mine", CLASSIFY, labels)
    table = model_card._render_table(model_card._task_rows(task, {"heldout_accuracy": 0.5}))
    assert table.splitlines() == [
        "| | |",
        "|---|---|",
        rf"| fine-tuned on | \<b>Mine ({CLASSIFY}) |",
        r"| labels, by their ids | a\|b, \<img src=x>, \[x\](http://y), \`q\`, two lines, "
        "not_entailment |",
        "| development set: accuracy | 0.5000 |",
    ]
    origin = model_card._describe_origin(dataclasses.replace(held, task=task))
    assert origin.startswith(r"A BERT fine-tuned on \<b>Mine, exported by bert_jax from ")
