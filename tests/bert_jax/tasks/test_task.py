"""The first example of a task on the screen: all of it, or as much as fits."""

import pytest

from bert_jax.tasks.task import Example


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
