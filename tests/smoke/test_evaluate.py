"""The evaluate entry as a person runs it, on a small checkpoint of Hugging Face's layout."""

import functools
import json

import pytest

from bert_jax import pretrained, run_export
from tests.bert_jax import small_checkpoints


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return small_checkpoints.write(tmp_path_factory.mktemp("hf"), small_checkpoints.tensors())


@pytest.fixture
def evaluate(forked, checkpoint):
    return functools.partial(forked, "bert_jax.evaluate", f"--checkpoint=hf:{checkpoint}")


def test_sentences_are_scored_a_line_each(evaluate, tmp_path):
    (tmp_path / "sentences.txt").write_text("a cat sees dogs.\r\nA whale.\n")
    out = evaluate(
        f"--sentences={tmp_path / 'sentences.txt'}", f"--output={tmp_path / 'scores.jsonl'}"
    ).stdout
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [line["sentence"] for line in lines] == ["a cat sees dogs.", "A whale."]
    assert [(line["tokens"], line["unknown_tokens"]) for line in lines] == [(6, 0), (3, 1)]
    assert all(line["pseudo_log_likelihood"] < 0 < line["pseudo_perplexity"] for line in lines)
    total = sum(line["pseudo_log_likelihood"] for line in lines)
    table = out.splitlines()
    assert f"{total:.2f}" in table[-2] and table[-2].endswith("all 2, 1 tokens unknown")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to score: give --store or --sentences"),
        (["--split=dev"], "--split is 'dev'; it must be heldout or train"),
        (["--segments=pairs"], "--segments is 'pairs'; it must be one of nsp, sop"),
        (["--examples=0"], "--examples is 0; it must be 1 or more"),
        (["--output=/no/folder/x"], "but there is no folder /no/folder; make it first"),
        (["--output={}/manifest.json"], "which is there already; give another name"),
        (["--sentences=x", "--examples=9"], "--examples is of a store, and only sentences are"),
        (["--sentences=/no/file"], "/no/file: No such file or directory"),
        (["--store={}"], "piece 1 of "),
        (["--checkpoint=hf:/no/folder", "--sentences=x"], "is not a folder of this machine"),
        (["more"], "'more' is not a flag; usage: python -m bert_jax.evaluate"),
    ],
)
def test_mistakes_get_one_sentence(evaluate, tiny_store, arguments, words):
    done = evaluate(*(argument.format(tiny_store) for argument in arguments), code=2)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and words in done.stderr
    assert done.stdout == ""


def test_an_encoder_alone_is_refused_in_a_sentence(forked, tmp_path):
    bare = small_checkpoints.write(tmp_path / "hf", small_checkpoints.tensors(has_heads=False))
    (tmp_path / "sentences.txt").write_text("a cat\n")
    flags = [f"--checkpoint=hf:{bare}", f"--sentences={tmp_path / 'sentences.txt'}"]
    said = forked("bert_jax.evaluate", *flags, code=2).stderr
    assert "has no masked language model's head" in said and said.count("\n") == 1


def test_a_converted_checkpoint_has_no_store_of_its_own(forked, checkpoint, tmp_path):
    run_export.write(pretrained.load(f"hf:{checkpoint}"), tmp_path)
    said = forked("bert_jax.evaluate", f"--checkpoint=orbax:{tmp_path}", code=2).stderr
    assert said.startswith("error: there is nothing to score: give --store or --sentences")
