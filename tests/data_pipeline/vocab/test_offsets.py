"""Pieces with their characters: the ids of Vocabulary.encode, the text they were cut from."""

import pytest

from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.byte_level import train_byte_level
from data_pipeline.vocab.offsets import PieceAligner
from tests.data_pipeline.encoded import SPECIALS, id_lists, train_model, write_list
from tests.data_pipeline.multilingual import sentences
from tests.data_pipeline.vocab.test_wordpiece import TRICKY


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """An uncased vocabulary of letters, two words, two Chinese characters and some signs."""
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [*alphabet, *(f"##{letter}" for letter in alphabet), *"().,'-$"]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    return load_vocabulary(write_list(path, [*pieces, "steve", "smith", "中", "国"]))


@pytest.fixture(scope="module")
def sentence_pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "vocab.model"
    named = {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "control_symbols": SPECIALS[2:]}
    path.write_bytes(train_model(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, **named))
    return load_vocabulary(path)


def cut(vocabulary, text):
    """The characters of each piece."""
    found = PieceAligner(vocabulary).encode(text)
    return [text[start:end] for start, end in zip(found.starts_T, found.ends_T, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Steve Smith's", ["Steve", "Smith", "'", "s"]),
        ("  (1895-96).\n", ["(", "1", "8", "9", "5", "-", "9", "6", ")", "."]),
        ("Ünï\u00a0a", ["Ü", "n", "ï", "a"]),
        # An accent of its own goes with its letter, though nothing of it is left.
        ("e\u0301a\u0302 b", ["e\u0301", "a\u0302", "b"]),
        ("在中国a", ["在", "中", "国", "a"]),
        # A word with an unknown letter is one piece; so is one that is too long.
        ("aŁb c", ["aŁb", "c"]),
        ("x" * 201 + " y", ["x" * 201, "y"]),
        ("a\u200bb\u00ad", ["a", "b"]),  # what the vocabulary drops belongs to no piece
        ("", []),
        (" \x07 ", []),
    ],
)
def test_wordpieces_stand_for_these_characters(letters, text, expected):
    assert cut(letters, text) == expected


def test_a_cased_list_keeps_its_capitals(tmp_path):
    path = write_list(tmp_path / "vocab.txt", ["steve", "Steve", "Smith"])
    vocabulary = load_vocabulary(path, lowercase=False)
    ids = PieceAligner(vocabulary).encode("Steve steve Smith smith").ids_T
    assert [vocabulary.pieces()[number] for number in ids] == ["Steve", "steve", "Smith", "[UNK]"]


def test_ids_are_those_of_the_vocabulary(uncased, shared_data):
    vocabulary = load_vocabulary(uncased)
    naughty = (shared_data / "robustness" / "blns.txt").read_text(encoding="utf-8").splitlines()
    real = (*sentences(shared_data, "zh")[:50], *sentences(shared_data, "de")[:50])
    lines = [*TRICKY, *naughty, *real]
    aligner = PieceAligner(vocabulary)
    for line, ids in zip(lines, id_lists(vocabulary, lines), strict=True):
        found = aligner.encode(line)
        assert found.ids_T.tolist() == ids, line
        assert (found.starts_T[1:] >= found.starts_T[:-1]).all()
        assert (found.ends_T > found.starts_T).all() and (found.ends_T <= len(line)).all()


def test_sentencepieces_are_those_of_each_word(sentence_pieces):
    text = "bal  Word,\tqq ﬁr\u00a0cel"
    found = PieceAligner(sentence_pieces).encode(text)
    of_words = id_lists(sentence_pieces, text.split())
    assert found.ids_T.tolist() == [piece_id for ids in of_words for piece_id in ids]
    # Whatever the pieces are, together they are the words and nothing else.
    assert "".join(cut(sentence_pieces, "bal  Word,\tqq")) == "balWord,qq"
    assert cut(sentence_pieces, text)[-1].endswith("l")


@pytest.mark.parametrize("kind", ["letters", "sentence_pieces", "bytes"])
@pytest.mark.parametrize("text", ["a\ud800b c", "\udfff", "bal \udc00 Word\ud83d"])
def test_an_unpaired_surrogate_is_the_replacement_character(request, tmp_path, kind, text):
    if kind == "bytes":
        (tmp_path / "tokenizer.json").write_bytes(train_byte_level(["bal Word"] * 9, 264, 0))
        vocabulary = load_vocabulary(tmp_path / "tokenizer.json")
    else:
        vocabulary = request.getfixturevalue(kind)
    replaced = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    assert id_lists(vocabulary, [text]) == id_lists(vocabulary, [replaced])
    pieces, expected = (PieceAligner(vocabulary).encode(each) for each in (text, replaced))
    for name in ("ids_T", "starts_T", "ends_T"):
        assert getattr(pieces, name).tolist() == getattr(expected, name).tolist()
