"""The first example of a task on the screen, and the predictions for its splits in a folder."""

import pytest

from bert_jax.tasks.task import CLASSIFY, Example, Task, write_splits


def test_the_first_example_shows_its_texts_as_read_and_its_label():
    assert Example(("a\u200b 'b'", "c"), "no").describe(80) == "\"a\\u200b 'b'\" | 'c' -> no"
    assert Example(("a",), "no\u00a0").describe(80) == r"'a' -> 'no\xa0'"


@pytest.mark.parametrize("texts", [("long " * 99,), ("short", "long " * 99), ("a " * 99,) * 2])
@pytest.mark.parametrize("label", ["pos", "B-PER O " * 30])
@pytest.mark.parametrize("width", [20, 64, 200])
def test_a_long_example_is_cut_to_the_width(texts, label, width):
    line = Example(texts, label).describe(width)
    assert width - 8 <= len(line) <= width and " -> " in line
    if width > 20:
        assert ("'short'" in line) == ("short" in texts) and line.startswith("'")
        assert line.endswith("-> pos") == (label == "pos")


def test_predictions_of_all_splits_take_the_place_of_the_earlier_ones(tmp_path):
    earlier = []

    def format_predictions(split, logits):
        earlier.append(split)
        return {f"{split}.tsv": f"{logits}, number {len(earlier)}"}

    splits = dict.fromkeys(("train", "dev", "test"))
    task = Task("x", CLASSIFY, 2, splits, ("dev",), None, "accuracy", {}, format_predictions)
    folder = tmp_path / "predictions"
    for place in (folder, tmp_path / "predictions.unfinished"):  # a killed process leaves that one
        place.mkdir()
        (place / "old.tsv").touch()
    paths = [folder / "dev.tsv", folder / "test.tsv"]
    assert write_splits(task, {"test": 1, "dev": 2}, folder) == paths
    assert [path.read_text() for path in paths] == ["2, number 1", "1, number 2"]
    assert sorted(tmp_path.rglob("*.tsv")) == paths
