"""Words that a list cuts, counted by hand, and the command that adds them to it."""

import pytest
from tokenizers import normalizers, pre_tokenizers, processors

from data_pipeline import grow_vocab
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer

PIECES = [
    *("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("a", "c", "cell", "the", "my", "##o", "##cyte", "##s", ".", "1", "##9"),
]
TEXT = (
    "The Myocyte . Myocytes myocyte, cells CELLS cells 199 199 199 199 199",
    "the c\u00e9lls; \u03b2 \u03b2 \u03b2 \u03b2 cell",
)
# As BERT sees them: without capitals and accents, punctuation apart.
COUNTS = {
    **{"the": 2, "myocyte": 2, ".": 1, "myocytes": 1, ",": 1, "cells": 4, "199": 5},
    **{";": 1, "\u03b2": 4, "cell": 1},
}


@pytest.fixture
def run(tmp_path, capsys):
    """The command on the text above: its exit code, and what it printed."""
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    places = {"vocab": "vocab.txt", "input": "text.txt", "output": "grown.txt"}

    def run(**changed):
        flags = {name: tmp_path / file for name, file in places.items()} | {"min_count": 1}
        code = grow_vocab.main([f"--{name}={value}" for name, value in (flags | changed).items()])
        return code, capsys.readouterr()

    return run


def test_words_fill_slots_and_then_the_end(run, tmp_path):
    code, printed = run(words=3)
    assert code == 0 and printed.err == ""
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
        assert words in printed.out, printed.out


@pytest.mark.parametrize(
    ("part", "value", "is_grown"),
    [
        ("normalizer", normalizers.BertNormalizer(), True),
        ("normalizer", normalizers.BertNormalizer(strip_accents=False), False),
        ("normalizer", normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]), False),
        ("pre_tokenizer", pre_tokenizers.Whitespace(), False),
        ("model", "@@", False),
        ("added", "<e>", False),
        ("special", ("[CLS]", "[SEP]"), True),
        ("special", ("<s>", "</s>"), False),  # MPNet has BERT's too
    ],
)
def test_a_tokenizer_json_is_grown_where_a_list_keeps_its_rules(
    run, tmp_path, part, value, is_grown
):
    pieces = [piece.replace("##", value) if part == "model" else piece for piece in PIECES]
    pieces += ["<s>", "</s>"]
    tokenizer = make_wordpiece_tokenizer(pieces, "[UNK]", lowercase=True)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    if part == "added":
        tokenizer.add_tokens([value])
    elif part == "special":
        cls, sep = ((piece, pieces.index(piece)) for piece in value)
        tokenizer.post_processor = processors.BertProcessing(sep, cls)
    elif part == "model":
        tokenizer.model.continuing_subword_prefix = value
    else:
        setattr(tokenizer, part, value)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    code, printed = run(vocab=tmp_path / "tokenizer.json")
    assert (code == 0) == is_grown == (tmp_path / "grown.txt").exists()
    assert is_grown or ("tokenizer.json" in printed.err and "add_tokens" in printed.err)


def test_slots_are_left_alone_where_that_is_asked_for(run, tmp_path):
    code, printed = run(keep_unused=True)
    assert code == 0
    pieces = (tmp_path / "grown.txt").read_text().split()
    assert pieces == [*PIECES, "cells", "myocyte", "\u03b2", "myocytes"]
    assert "no more words occur 1 times and are cut" in printed.out
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"grown.txt", "text.txt", "vocab.txt"}


def test_words_are_counted_and_those_that_save_most_tokens_come_first(tmp_path):
    """Numbers are not among them; what is unknown would be known."""
    assert grow_vocab.count_words(TEXT, lowercase=True) == COUNTS
    assert grow_vocab.count_words(["Cell cell"], lowercase=False) == {"Cell": 1, "cell": 1}
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    vocabulary = load_vocabulary(tmp_path / "vocab.txt")
    cut = grow_vocab.find_cut_words(COUNTS, vocabulary, min_count=1)
    assert [(word.word, word.count, word.pieces, word.saved) for word in cut] == [
        ("cells", 4, ("cell", "##s"), 4),
        ("myocyte", 2, ("my", "##o", "##cyte"), 4),
        ("\u03b2", 4, ("[UNK]",), 4),
        ("myocytes", 1, ("my", "##o", "##cyte", "##s"), 3),
    ]
    often = grow_vocab.find_cut_words(COUNTS, vocabulary, min_count=4)
    assert [word.word for word in often] == ["cells", "\u03b2"]
    longest = "b" * 200  # a longer word is unknown to BERT's tokenizer, whatever the list has
    cut = grow_vocab.find_cut_words({longest: 9, f"{longest}b": 9}, vocabulary, min_count=1)
    assert [word.word for word in cut] == [longest]
    # the 2, myocyte 2 x 3, . , ; 1 each (two of them unknown), myocytes 4, cells 4 x 2, 199 5 x 3,
    # beta 4 and cell 1.
    assert grow_vocab.count_tokens(COUNTS, vocabulary) == 2 + 6 + 3 + 4 + 8 + 15 + 4 + 1
