"""The report on a screen: what it names, its width, and where the answers stand."""

import io

import numpy as np
import rich.console

from data_pipeline.health_terminal import example_lines, shape
from data_pipeline.lengths import lengths_of
from data_pipeline.row_health import Example, Token


def test_answers_stand_under_what_hides_them():
    tokens = (
        Token("[CLS]", True),
        Token("the", True),
        Token("[MASK]", True, "understanding", "hidden"),
        Token("un", True),
        Token("do", False, "##able", "replaced"),
        Token("狗", True, "狗", "kept"),
        Token("[SEP]", True),
    )
    shown, answers = (line.plain for line in example_lines(Example(False, tokens), 80))
    assert shown == "[CLS] the [MASK]        undo     狗 [SEP]"
    assert answers == "          understanding   ##able 狗"
    assert shown.index("[MASK]") == answers.index("understanding")
    assert shown.index("undo") + 2 == answers.index("##able")


def test_lines_keep_to_the_width_and_lose_no_token():
    rng = np.random.default_rng(4)
    tokens = tuple(
        Token(f"word{i}", True, *(("answer", "kept") if rng.random() < 0.2 else ()))
        for i in range(200)
    )
    lines = list(example_lines(Example(True, tokens), 40))
    assert max(line.cell_len for line in lines) <= 40
    text = " ".join(line.plain for line in lines)
    assert text.split().count("answer") == sum(token.original is not None for token in tokens)
    assert [word for word in text.split() if word != "answer"] == [one.text for one in tokens]


def test_markup_in_a_corpus_is_text():
    tokens = (Token("[bold red]", True), Token("[/]", True, "[link]", "hidden"))
    console = rich.console.Console(file=io.StringIO(), width=80)
    for line in example_lines(Example(False, tokens), 80):
        console.print(line)
    shown, answers = console.file.getvalue().splitlines()
    assert shown.split() == ["[bold", "red]", "[/]"] and answers.strip() == "[link]"


def test_control_characters_do_not_reach_the_terminal():
    tokens = (Token("\x1b[2Jw\n", True, "\x07", "kept"), Token("狗\u200b", True))
    shown, answers = (line.plain for line in example_lines(Example(False, tokens), 80))
    assert shown == "\ufffd[2Jw\ufffd 狗\ufffd" and answers == "\ufffd"


def test_a_shape_is_as_high_as_what_is_common_and_shows_what_is_rare():
    lengths = lengths_of([np.array([1, 5, *[4] * 100])], is_even=True)
    assert shape(lengths, columns=5) == "▁  █▁"
    assert shape(lengths_of([np.array([9])]), columns=3) == "███"
