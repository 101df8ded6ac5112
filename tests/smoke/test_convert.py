"""The convert entry as a person runs it."""

import json

import numpy as np
import pytest

from tests.bert_jax.small_checkpoints import tensors, write


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A BERT without heads, as Hugging Face has it."""
    return write(tmp_path_factory.mktemp("small"), tensors(has_heads=False))


def test_parts_that_are_missing_or_of_no_bert_are_said(forked, tmp_path):
    more = {"linear.weight": np.ones((7, 14), np.float32)}
    given = write(tmp_path / "given", tensors(has_heads=False) | more)
    done = forked("bert_jax.convert", f"--from=hf:{given}", f"--to=orbax:{tmp_path / 'alone'}")
    assert "without MLM head, NSP head: left out; --initialize_missing=true draws" in done.stdout
    assert "no part of a BERT, and left out: linear.weight\n" in done.stdout
    assert "  hidden        differ by 0.0e+00 at most\n" in done.stdout
    done = forked("bert_jax.fill_mask", f"--workdir={tmp_path / 'alone'}", "a [MASK]", code=2)
    assert "has no masked language model's head" in done.stderr


@pytest.mark.long
def test_heads_and_activation_can_be_asked_for(forked, small, tmp_path):
    flags = [f"--to=hf:{tmp_path / 'out'}", "--initialize_missing=true", "--hidden_act=gelu_tanh"]
    done = forked("bert_jax.convert", f"--from={small}", *flags)
    assert "without MLM head, NSP head: drawn at random" in done.stdout
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["hidden_act"] == "gelu_new"
    assert config["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "error: --from is missing; python -m bert_jax.convert --from"),
        (["--from=hf:{}"], "error: --to is missing"),
        (["--from=hf:{}", "--to=hf:{}"], "holds config.json and 2 more; give a new or an empty"),
        (["--from=hf:{}", "--to=hf:{}/out", "--seed=3"], "of what is drawn, and nothing is"),
        (["--from=hf:{}", "--to=google:{}/out/", "--push_to_hub=me/mine"], "only an export to hf:"),
        (["--from=hf:{}", "--to=hf:{}/out", "--push_to_hub=mine"], "--push_to_hub is 'mine'"),
        (["--from=hf:{}", "--to=hf:{}/out", "--public"], "give --push_to_hub=ORG/NAME too"),
        (["--from=/nowhere", "--to=hf:{}/out"], "'/nowhere' is not a folder of this machine"),
        (["--from=hf:{}", "--to=google:{}/out/"], "--hidden_act=gelu_tanh that the approximation"),
    ],
)
def test_what_cannot_be_done_is_one_line(forked, small, flags, words):
    done = forked("bert_jax.convert", *(flag.format(small) for flag in flags), code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (small / "out").exists()
