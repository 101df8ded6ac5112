"""The grow_vocab entry as a person runs it: what it writes, says and refuses."""

import pytest

from data_pipeline import grow_vocab
from data_pipeline.vocab import load_vocabulary
from tests.data_pipeline.test_vocab_growth import PIECES, TEXT


@pytest.fixture
def run(tmp_path, capsys):
    """The entry on the text above: its exit code, and what it said."""
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))

    def run(**changed):
        flags = {
            "vocab": tmp_path / "vocab.txt",
            "input": tmp_path / "text.txt",
            "output": tmp_path / "grown.txt",
            "min_count": 1,
            **changed,
        }
        code = grow_vocab.main([f"--{name}={value}" for name, value in flags.items()])
        return code, capsys.readouterr()

    return run


def test_words_fill_slots_and_then_the_end(run, tmp_path):
    code, said = run(words=3)
    assert code == 0 and said.err == ""
    pieces = (tmp_path / "grown.txt").read_text().split("\n")[:-1]
    assert pieces == ["[PAD]", "cells", "myocyte", *PIECES[3:], "\u03b2"]
    grown = load_vocabulary(tmp_path / "grown.txt")
    ids, _ = grown.encode(["Myocytes, CELLS"])
    assert [grown.pieces()[i] for i in ids] == ["myocyte", "##s", "[UNK]", "cells"]
    for words in (
        "my ##o ##cyte",
        "3 added: 2 in slots [unusedN], of which 0 are left, and 1 at the end",
        "18 -> 19; the others keep their ids",
        "43 tokens -> 33 (-23.3%)",
        "1 of the words were [UNK] before",
        "data_pipeline.build --vocab=",
    ):
        assert words in said.out, said.out


def test_slots_are_left_alone_where_that_is_asked_for(run, tmp_path):
    code, said = run(keep_unused=True)
    assert code == 0
    pieces = (tmp_path / "grown.txt").read_text().split()
    assert pieces == [*PIECES, "cells", "myocyte", "\u03b2", "myocytes"]
    assert "no more words occur 1 times and are cut" in said.out
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"grown.txt", "text.txt", "vocab.txt"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"words": 0}, "--words is 0; it must be from 1 to"),
        ({"min_count": 50}, "cuts none into pieces; give more text, a lower --min_count"),
        ({"vocab": ""}, "--vocab is missing; a whole command is: python -m"),
        ({"output": "gs://bucket/vocab.txt"}, "--output is gs://bucket/vocab.txt"),
        ({"output": "/no/folder/vocab.txt"}, "but there is no folder /no/folder; make it first"),
        ({"output": "grown.json"}, "names another kind of vocabulary"),
        ({"lowercase": False}, "--lowercase is false, but"),
    ],
)
def test_mistakes_get_one_sentence(run, tmp_path, flags, words):
    code, said = run(**flags)
    assert code == 2 and said.err.count("\n") == 1
    assert said.err.startswith("error: ") and words in said.err
    assert not (tmp_path / "grown.txt").exists()


def test_a_file_that_is_there_is_not_written_over(run, tmp_path):
    (tmp_path / "grown.txt").write_text("mine\n")
    code, said = run()
    assert code == 2 and "which is there already; give another name" in said.err
    assert (tmp_path / "grown.txt").read_text() == "mine\n"
