"""Files of words and tags: their schemes, their separators, and what is wrong in them by line."""

import pytest

from bert_jax.tasks.ner_files import read


@pytest.fixture
def of(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "words.conll"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def tags_of(file):
    return [" ".join(sentence.tags) for sentence in file.sentences]


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


def test_conll_2003_as_published_has_iob1_tags_which_become_iob2(of):
    file = read(of(CONLL_2003))
    assert tags_of(file) == ["B-ORG O B-MISC O", "B-PER I-PER", "B-LOC B-LOC"]
    assert [sentence.words for sentence in file.sentences][1] == ("Peter", "Blackburn")
    assert [sentence.first_line for sentence in file.sentences] == [3, 8, 13]
    assert file.note == "3 sentences, 8 words, 5 entities, IOB1"


def test_iob2_stays_and_adjacent_entities_stay_apart(of):
    file = read(of("a\tB-X\nb\tB-X\nc\tI-X\nd\tO\ne\tB-Y\n"))
    assert tags_of(file) == ["B-X B-X I-X O B-Y"]
    assert file.note.endswith("IOB2")


@pytest.mark.parametrize("tags", ["B-X I-X E-X O S-Y S-Y", "B-X I-X L-X O U-Y U-Y"])
def test_tags_that_end_entities_become_iob2(of, tags):
    file = read(of("".join(f"w {tag}\n" for tag in tags.split())))
    assert tags_of(file) == ["B-X I-X I-X O B-Y B-Y"]


def test_mixed_iob_schemes_are_counted_and_the_first_row_of_the_rarer_is_named(of):
    file = read(of("a B-X\nb I-X\n\nc O\nd I-X\n\ne B-Y\nf B-X\n"))
    assert tags_of(file) == ["B-X I-X", "O B-X", "B-Y B-X"]
    assert "mixed IOB1 and IOB2: 2 entities begin with B- after O, 1 with I-" in file.note
    assert "the first with I- is row 5" in file.note


@pytest.mark.parametrize(
    ("tags", "line", "words"),
    [
        ("S-X O I-X E-X", 3, "I-X cannot follow O"),
        ("S-X B-Y O", 3, "O cannot follow B-Y"),
        ("B-X I-X S-Y", 3, "S-Y cannot follow I-X"),
        ("B-X E-Y", 2, "E-Y cannot follow B-X"),
        ("E-X O", 1, "E-X cannot follow a sentence's beginning"),
        ("S-X B-X", 2, "B-X cannot end a sentence"),
    ],
)
def test_iob_and_bioes_in_one_file_are_refused_by_line(of, tags, line, words):
    path = of("".join(f"w {tag}\n" for tag in tags.split()))
    with pytest.raises(ValueError, match=f"row {line}: {words}, for the file has tags that end"):
        read(path)


@pytest.mark.parametrize("tag", ["PER", "B-", "X-PER", "o", "B_PER"])
def test_what_is_no_tag_is_refused_by_line(of, tag):
    with pytest.raises(ValueError, match=rf"words\.conll row 3 has the tag '{tag}'"):
        read(of(f"a O\n\nb {tag}\n"))


def test_sentences_end_at_lines_without_anything_to_see(of):
    # As WNUT-17's training file ends them, under Windows and with a mark of byte order.
    file = read(of("\ufeffa\tO\r\n\t\r\n \r\nb\tB-X\r\n"))
    assert [sentence.words for sentence in file.sentences] == [("a",), ("b",)]
    assert [sentence.first_line for sentence in file.sentences] == [1, 4]


def test_words_may_hold_spaces_of_any_kind(of):
    file = read(of("New York\tB-X\n\u00a0\tO\n"))
    assert file.sentences[0].words == ("New York", "\u00a0")
    assert read(of("a\u00a0b   O\n")).sentences[0].words == ("a\u00a0b",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a O\nb\n", "row 2 has 1 columns, where row 1 has 2 columns parted by spaces"),
        ("a\tO\n\nb\tx\tO\n", "row 3 has 3 columns, where row 1 has 2 columns parted by tabs"),
        ("a\tO\n\tO\n", "row 2 has no word in its first column"),
        ("\n \n", "has no words"),
        ("-DOCSTART- O\n", "has no words"),
    ],
)
def test_wrong_columns_are_refused_by_line(of, text, words):
    with pytest.raises(ValueError, match=words):
        read(of(text))


def test_a_file_in_latin_1_is_refused_by_line(of):
    with pytest.raises(ValueError, match=r"row 2 is not UTF-8: byte 0xfc.*iconv"):
        read(of("a O\nMünchen B-LOC\n", encoding="latin-1"))


def test_a_file_of_words_alone_has_no_tags(of):
    file = read(of("a\nb\n\nc\n"))
    assert not file.has_tags and file.words == 3
    assert list(file.tags_by_line()) == []
