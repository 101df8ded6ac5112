"""Named entities on frozen vectors as a person runs it, on a small checkpoint."""

import json

import pytest

from bert_jax.tasks import entity_report
from tests.bert_jax import small_checkpoints

WORDS = "a O\ncat B-PET\nsees O\n\ndog B-PET\nsees O\na O\ncat B-PET\n"


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What every command has but for its output."""
    folder = tmp_path_factory.mktemp("words")
    small_checkpoints.write(folder / "checkpoint", small_checkpoints.tensors(has_heads=False))
    for name in ("train.txt", "dev.txt", "test.txt"):
        (folder / name).write_text(WORDS)
    return [f"--checkpoint={folder}/checkpoint", f"--data_dir={folder}", "--max_seq_length=16"]


def test_each_kind_of_features_leaves_its_scores_and_predictions(forked, usual, tmp_path):
    kinds, output = ["last", "weighted_all"], tmp_path / "output"
    few = [f"--features={','.join(kinds)}", "--units=3", "--epochs=2", f"--output={output}"]
    said = forked("bert_jax.feature_ner", *usual, *few).stdout
    scores = json.loads((output / "scores.json").read_text())
    assert list(scores) == kinds
    for kind, of_kind in scores.items():
        assert f"f1 {of_kind['f1']:.4f} on dev, epoch {of_kind['epoch']}" in said
        found = entity_report.read_score(output / kind / "dev.conll")
        assert (found.words, found.overall.gold) == (7, 3)
        assert found.overall.f1 == of_kind["f1"]
        assert entity_report.read_score(output / kind / "test.conll").words == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data_dir="], "--data_dir is missing"),
        (["--units=0"], "--units is 0; it must be 1 or more"),
        (["--learning_rate=0"], "--learning_rate is 0.0; it must be above 0"),
        (["--features=first"], "'first' is none of embeddings, "),
        (["--features=weighted_last_four"], "has 2 layers, not four; give others of embeddings, "),
        (["--max_seq_length=20"], "the checkpoint has 19 positions: give that or less"),
    ],
)
def test_mistakes_get_one_sentence_and_write_nothing(forked, usual, tmp_path, arguments, words):
    given = [*usual, f"--output={tmp_path}/output", *arguments]
    said = forked("bert_jax.feature_ner", *given, code=2).stderr
    assert said.startswith("error: ") and words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
