"""What a vocabulary says of itself, and vocabularies that must be refused."""

import io
import pathlib

import numpy as np
import pytest
import sentencepiece

from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab_training import train_sentencepiece
from tests.data_pipeline.encoded import id_lists

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def sentencepiece_path(tmp_path_factory) -> pathlib.Path:
    words = [f"{a}{b}{c} Word {a}{c}." for a in "bcdf" for b in "aeiou" for c in "lmnr"]
    path = tmp_path_factory.mktemp("model") / "small.model"
    path.write_bytes(train_sentencepiece("unigram", lambda: words, 99, lowercase=True))
    return path


def write(directory: pathlib.Path, pieces: list[str]) -> pathlib.Path:
    path = directory / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def test_what_a_wordpiece_list_says_of_itself(uncased):
    loaded = load_vocabulary(uncased)
    assert (loaded.kind, loaded.size, loaded.lowercase) == ("wordpiece", 30522, True)
    assert loaded.special_ids == {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
    assert loaded.pieces()[1996] == "the"
    assert loaded.is_continuation.dtype == bool
    assert loaded.is_continuation.sum() == sum(p.startswith("##") for p in loaded.pieces())
    assert loaded.decode(loaded.encode(["Unaffable words"])[0].tolist()) == "unaffable words"
    assert loaded.decode(np.array([101, 1996], np.uint16)) == "[CLS] the"


def test_what_a_sentencepiece_model_says_of_itself(sentencepiece_path):
    loaded = load_vocabulary(sentencepiece_path, lowercase=False)  # the model knows better
    assert (loaded.kind, loaded.size, loaded.lowercase) == ("sentencepiece", 99, True)
    assert loaded.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    (ids, empty, literal) = id_lists(loaded, ["BAL word dem", " ", "[MASK]"])
    assert loaded.decode(ids) == "bal word dem"
    assert empty == []
    assert 4 not in literal
    assert loaded.decode(np.array(ids, np.uint16)) == "bal word dem"
    starts = [i for i in ids if not loaded.is_continuation[i]]
    assert len(starts) == 3
    assert not loaded.is_continuation[:5].any()


@pytest.mark.parametrize(
    "pieces, sentence",
    [
        (
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"],
            r"vocab\.txt has no piece \[MASK\] among its 5",
        ),
        ([*SPECIALS, "a", "b", "a"], r"the piece 'a' twice, in lines 6 and 8"),
        ([*SPECIALS, "", "b", "", "c"], r"the piece '' twice, in lines 6 and 8"),
        (
            [*SPECIALS, "The", "House", "a"],
            r"--lowercase is true, but 2 of the 8 .*lowercase=false",
        ),
    ],
)
def test_lists_that_do_not_work_are_refused(tmp_path, pieces, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_vocabulary(write(tmp_path, pieces))


def test_an_uncased_list_is_refused_where_case_is_kept(uncased):
    with pytest.raises(ValueError, match=r"--lowercase is false, but .* no piece with a capital"):
        load_vocabulary(uncased, lowercase=False)


def test_files_that_are_no_vocabulary_are_refused(tmp_path, sentencepiece_path):
    with pytest.raises(ValueError, match=r"--vocab is .*none\.txt, which is not a file"):
        load_vocabulary(tmp_path / "none.txt")
    bad = tmp_path / "bad.model"
    bad.write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"bad\.model ends in \.model but is not a SentencePiece"):
        load_vocabulary(bad)
    renamed = tmp_path / "vocab.txt"
    renamed.write_bytes(sentencepiece_path.read_bytes())
    with pytest.raises(ValueError, match=r"not a UTF-8 list of pieces .*ends in \.model"):
        load_vocabulary(renamed)


def train(path: pathlib.Path, lines: list[str], **settings: object) -> pathlib.Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=model,
        pad_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    path.write_bytes(model.getvalue())
    return path


def test_a_model_that_reads_special_pieces_in_texts_is_refused(tmp_path):
    symbols = ["<cls>", "<sep>", "<mask>"]
    words = ["one word two words"] * 9
    good = train(tmp_path / "a.model", words, vocab_size=30, control_symbols=symbols)
    assert load_vocabulary(good).special_ids["mask"] == 6
    bad = train(tmp_path / "b.model", words, vocab_size=30, user_defined_symbols=symbols)
    with pytest.raises(ValueError, match=r"turns the characters <.*> of a text into the id"):
        load_vocabulary(bad)


def test_words_of_sentencepiece_start_at_spaces_signs_and_unspaced_scripts(tmp_path):
    symbols = ["<cls>", "<sep>", "<mask>"]
    words = ["don't 我喜欢 (of) 3,000 naïve", "don't stop"] * 9
    path = train(
        tmp_path / "a.model",
        words,
        vocab_size=330,
        control_symbols=symbols,
        byte_fallback=True,
        model_type="char",
    )
    loaded = load_vocabulary(path)
    pieces, goes_on = loaded.pieces(), loaded.is_continuation
    assert not goes_on[list(loaded.special_ids.values())].any()
    of_text = {piece: bool(goes_on[i]) for i, piece in enumerate(pieces)}
    assert {p for p in "\u2581'(,我喜欢" if of_text[p]} == set()
    assert {p for p in "donïve30" if not of_text[p]} == set()
    assert of_text["<0xE4>"]
    assert of_text["<0x41>"]


def test_each_chinese_character_is_a_word_of_wordpiece(tmp_path):
    loaded = load_vocabulary(write(tmp_path, [*SPECIALS, "我", "喜", "##喜", "a", "##b"]))
    (ids,) = id_lists(loaded, ["我喜ab"])
    assert [loaded.pieces()[i] for i in ids] == ["我", "喜", "a", "##b"]
    assert loaded.is_continuation[ids].tolist() == [False, False, False, True]
