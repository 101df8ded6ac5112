"""Files of words and tags: their schemes, their separators, and what is wrong in them by line."""

import re

import pytest

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.ner.data import read
from bert_jax.tasks.ner.predict import TagPredictor
from bert_jax.tasks.predicting import PredictRequest
from bert_jax.tasks.task import TAG
from bert_jax.tasks.task_layer import TaskLayer


@pytest.fixture
def read_text(tmp_path):
    def write_and_read(text, encoding="utf-8"):
        path = tmp_path / "words.conll"
        path.write_bytes(text.encode(encoding))
        return read(path)

    return write_and_read


def column(tags):
    return "".join(f"w {tag}\n" for tag in tags.split())


CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

Rome NNP I-NP I-LOC
Bonn NNP I-NP B-LOC
"""


@pytest.mark.parametrize(
    ("text", "tags", "note"),
    [
        (
            CONLL_2003,
            ["B-ORG O B-MISC O", "B-PER I-PER", "B-LOC B-LOC"],
            "3 sentences, 8 words, 5 entities, IOB1",
        ),
        ("a\tB-X\nb\tB-X\nc\tI-X\nd\tO\ne\tB-Y\n", ["B-X B-X I-X O B-Y"], "IOB2"),
        (column("B-X I-X E-X O S-Y S-Y"), ["B-X I-X I-X O B-Y B-Y"], "BIOES"),
        (column("B-X I-X L-X O U-Y U-Y"), ["B-X I-X I-X O B-Y B-Y"], "BIOES"),
        (
            "a B-X\nb I-X\n\nc O\nd I-X\n\ne B-Y\nf B-X\n",
            ["B-X I-X", "O B-X", "B-Y B-X"],
            "mixed IOB1 and IOB2: 2 entities begin with B- after O, 1 with I-; the first with I- "
            "is row 5; each is read as conlleval reads it, as the beginning of an entity",
        ),
        ("a\nb\n\nc\n", ["", ""], "2 sentences, no tags"),
    ],
)
def test_tags_of_every_scheme_become_iob2(read_text, text, tags, note):
    file = read_text(text)
    assert [" ".join(sentence.tags) for sentence in file.sentences] == tags
    assert file.note.endswith(note)
    assert file.has_tags == any(tags)
    assert bool(list(file.list_types())) == ("B-" in "".join(tags))


@pytest.mark.parametrize(
    ("text", "sentences", "first_lines"),
    [
        (
            CONLL_2003,
            [("EU", "rejects", "German", "call"), ("Peter", "Blackburn"), ("Rome", "Bonn")],
            [3, 8, 13],
        ),
        # As WNUT-17's training file ends them, under Windows and with a mark of byte order.
        ("\ufeffa\tO\r\n\t\r\n \r\nb\tB-X\r\n", [("a",), ("b",)], [1, 4]),
        ("New York\tB-X\n\u00a0\tO\n", [("New York", "\u00a0")], [1]),
        ("a\u00a0b   O\n", [("a\u00a0b",)], [1]),
        # Tabs between the columns of words alone.
        ("-DOCSTART- -X- O\n\na\tX\tO\n-DOCSTART-\nb\tX\tO\n", [("a",), ("b",)], [3, 5]),
    ],
)
def test_words_are_counted_by_line_and_may_hold_spaces(read_text, text, sentences, first_lines):
    file = read_text(text)
    assert [sentence.words for sentence in file.sentences] == sentences
    assert [sentence.first_line for sentence in file.sentences] == first_lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (column("S-X O I-X E-X"), "row 3: I-X cannot follow O,"),
        (column("S-X B-Y O"), "row 3: O cannot follow B-Y,"),
        (column("B-X I-X S-Y"), "row 3: S-Y cannot follow I-X,"),
        (column("B-X E-Y"), "row 2: E-Y cannot follow B-X,"),
        (column("E-X O"), "row 1: E-X cannot follow a sentence's beginning,"),
        (column("S-X B-X"), "row 2: B-X cannot end a sentence,"),
        *(
            (f"a O\n\nb {tag}\n", rf"words\.conll row 3 has the tag '{tag}'")
            for tag in ("PER", "B-", "X-PER", "o", "B_PER")
        ),
        ("a O\nb\n", "row 2 has 1 columns, where row 1 has 2 columns separated by spaces"),
        ("a\tO\n\nb\tx\tO\n", "row 3 has 3 columns, where row 1 has 2 columns separated by tabs"),
        ("a\tO\n\tO\n", "row 2 has no word in its first column"),
        ("Eve B-PER\rran O\r. O\r", r"lines that end in carriage returns alone.*tr "),
        ("a\rb\r\nc\r\n", "row 1 has carriage returns within it.*tr "),
        ("a O\nM\ufffcnchen B-LOC\n", r"row 2 is not UTF-8: byte 0xfc.*iconv"),
    ],
)
def test_damage_is_refused_by_line(read_text, text, words):
    is_latin = "\ufffc" in text
    with pytest.raises(ValueError, match=words):
        read_text(text.replace("\ufffc", "ü"), "latin-1" if is_latin else "utf-8")


NUMBERED = {
    "from one": "1 Eve B-PER\n2 ran O\n3 . O\n\n1 Bob B-PER\n2 sat O\n",
    "from zero": "0\tEve\tB-PER\n1\tran\tO\n\n0\tBob\tB-PER\n1\tsat\tO\n",
    "through the file": "-DOCSTART- X O\n\n11 Eve B-PER\n12 ran O\n\n13 Bob O\n14 sat O\n",
    "of the sentence": "0 Eve B-PER\n0 ran O\n0 . O\n\n1 Bob B-PER\n1 sat O\n",
    "with points": "1. Eve B-PER\n2. ran O\n",
    "in brackets": "(1) Eve B-PER\n(2) ran O\n\n[1] Bob B-PER\n[2] sat O\n",
    "of characters": "0 3 Eve B-PER\n4 7 ran O\n8 9 . O\n\n0 3 Bob O\n4 7 sat O\n",
    "at the end of a name": "Sentence:1 Eve B-PER\nSentence:1 ran O\n\nSentence:2 Bob O\n",
    "in ids": "w1 Eve B-PER\nw2 ran O\n\ns2_w1 Bob B-PER\ns2_w2 sat O\n",
    "WebAnno": "#FORMAT=WebAnno TSV 3.2\n\n#Text=Eve ran\n1-1\t0-3\tEve\tB-PER\n1-2\t4-7\tran\tO\n",
    "CoNLL-U": "# text = Eve ran du lac\n1\tEve\tPROPN\tB-PER\n2\tran\tVERB\tO\n"
    "3-4\tdu\t_\tO\n3\tde\tADP\tO\n4\tle\tDET\tO\n5\tlac\tNOUN\tO\n6\t.\t_\tO\n\n",
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "running number") for text in NUMBERED.values()),
        ("-DOCSTART- O\n##hn I-PER\nran O\n", "pieces of words, 1 on its first 2 lines"),
    ],
    ids=[*NUMBERED, "WordPiece"],
)
def test_numbers_before_words_and_pieces_of_words_are_refused(read_text, tmp_path, text, words):
    first = next(line for line in text.splitlines() if re.match(r"[^#-]|##", line))
    with pytest.raises(ValueError, match=words) as caught:
        read_text(text)
    assert repr(first) in str(caught.value) and "words.conll" in str(caught.value)
    layer = TaskLayer("NER", TAG, (), options=TaskOptions(max_seq_length=16))
    request = PredictRequest(tmp_path / "words.conll", tmp_path / "tags.conll", layer, None)
    with pytest.raises(ValueError, match=words):
        TagPredictor(request, lambda count: None)


def test_a_sentence_longer_than_a_piece_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.tasks.ner.predict._PIECE_WORDS", 4)
    path = tmp_path / "words.conll"
    layer = TaskLayer("NER", TAG, (), options=TaskOptions(max_seq_length=16))
    for text, sentences in (("a\nb\nc\n\nd\ne\nf\n", 2), ("a\nb\nc\nd\ne\nf\n", 1)):
        path.write_text(text)
        request = PredictRequest(path, tmp_path / "tags.conll", layer, None)
        rows = TagPredictor(request, lambda count: None)
        assert rows.total == sentences


@pytest.mark.parametrize(
    "text",
    [
        *("In O\n1999 O\n2000 O\n. O\n", "1 O\n\n2 O\n", "7\n8\n", "#1 O\n#2 O\n", "3 O\n5 O\n"),
        "in IN O\n1999 CD O\nand CC O\n2001 CD O\n",
        "B2 NN O\nB12 NN O\nB6 NN O\nand CC O\nB1 NN O\n",
        *("## O\n### O\n", "##x O\n" + "a O\n" * 99),
    ],
)
def test_words_may_be_numbers_and_signs(read_text, text):
    assert read_text(text).words == text.count("\n") - text.count("\n\n")
