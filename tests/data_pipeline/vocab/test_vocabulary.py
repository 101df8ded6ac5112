"""What a vocabulary says of itself, files that hold the same one, and files that are refused."""

import hashlib
import json
import pathlib

import numpy as np
import pytest
import tokenizers

from data_pipeline.io import Refused
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.tokenizer_json import make_tokenizer_json
from data_pipeline.vocab.train import train_sentencepiece
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer
from tests.data_pipeline.encoded import WORDS, id_lists, train_model


@pytest.fixture(scope="module")
def sentencepiece_path(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("model") / "small.model"
    path.write_bytes(train_sentencepiece("unigram", lambda: WORDS, 99, lowercase=True))
    return path


def write(folder: pathlib.Path, data: bytes | str, name: str = "vocab.txt") -> pathlib.Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_what_a_wordpiece_list_says_of_itself(uncased):
    loaded = load_vocabulary(uncased)
    assert (loaded.kind, loaded.size, loaded.lowercase) == ("wordpiece", 30522, True)
    assert loaded.special_ids == {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
    assert loaded.pieces()[1996] == "the"
    assert loaded.is_continuation.dtype == bool
    assert loaded.is_continuation is loaded.is_continuation  # of all pieces, asked for per row
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


def test_one_text_is_not_read_as_many(uncased, sentencepiece_path, tmp_path):
    model = load_vocabulary(sentencepiece_path)
    copy = write(tmp_path, make_tokenizer_json(model), "tokenizer.json")
    for loaded in (load_vocabulary(uncased), model, load_vocabulary(copy)):
        with pytest.raises(Refused, match=r"^'a king' is one text, .*; put it in \[ \]$"):
            loaded.encode("a king")
        assert len(repr(loaded)) < 5000  # a notebook shows it


CONTROLS = ["<cls>", "<sep>", "<mask>"]


def test_a_model_that_reads_special_pieces_in_texts_or_marks_the_end_of_words_is_refused(tmp_path):
    """Where words end is not where they begin: "the▁" and "n" both follow any piece."""
    path = tmp_path / "a.model"
    path.write_bytes(train_model(pad_id=3, control_symbols=CONTROLS))
    assert load_vocabulary(path).special_ids["mask"] == 6
    suffixes = {"treat_whitespace_as_suffix": True, "control_symbols": CONTROLS}
    for settings, words in (
        ({"user_defined_symbols": CONTROLS}, r"turns the characters <.*> of a text into the id"),
        (suffixes, "after a word, so that its pieces do not show"),
    ):
        path.write_bytes(train_model(pad_id=3, **settings))
        with pytest.raises(ValueError, match=words):
            load_vocabulary(path)


def test_a_model_whose_piece_is_not_utf_8_is_refused(sentencepiece_path, tmp_path):
    data, path = sentencepiece_path.read_bytes(), tmp_path / "a.model"
    path.write_bytes(data + b"\n\4\n\2z\xff")
    with pytest.raises(Refused, match=r"a\.model .* is damaged; copy it again"):
        load_vocabulary(path)
    path.write_bytes(data + b"\n\6\n\2zz\x12\0")  # the library skips a score of another wire type
    assert load_vocabulary(path).pieces()[-1] == "zz"


def test_words_of_sentencepiece_start_at_spaces_signs_and_unspaced_scripts(tmp_path):
    words = ["don't 我喜欢 (of) 3,000 naïve", "don't stop"] * 9
    path = tmp_path / "a.model"
    settings = {"vocab_size": 330, "byte_fallback": True, "model_type": "char"}
    path.write_bytes(train_model(words, pad_id=3, control_symbols=CONTROLS, **settings))
    loaded = load_vocabulary(path)
    pieces, goes_on = loaded.pieces(), loaded.is_continuation
    assert not goes_on[list(loaded.special_ids.values())].any()
    of_text = {piece: bool(goes_on[i]) for i, piece in enumerate(pieces)}
    assert {p for p in "\u2581'(,我喜欢" if of_text[p]} == set()
    assert {p for p in "donïve30" if not of_text[p]} == set()
    assert of_text["<0xE4>"]
    assert of_text["<0x41>"]


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "é", "力", "!"]
LIST = "".join(piece + "\n" for piece in PIECES)


def bert_json(lowercase: bool = True) -> dict:
    return json.loads(make_wordpiece_tokenizer(PIECES, "[UNK]", lowercase).to_str())


@pytest.mark.parametrize(
    "data",
    [
        LIST,
        LIST.rstrip("\n"),
        LIST + "\n\n",
        LIST.replace("\n", "\r\n"),
        b"\xef\xbb\xbf" + LIST.encode(),
        LIST.replace("\n", " \n"),
    ],
    ids=["plain", "no last line feed", "blank lines", "carriage returns", "mark", "spaces"],
)
def test_lists_of_every_editor_are_one_vocabulary(tmp_path, data):
    vocabulary = load_vocabulary(write(tmp_path, data))
    assert vocabulary.pieces() == PIECES
    assert vocabulary.file_bytes == LIST.encode()
    assert vocabulary.digest == hashlib.sha256(LIST.encode()).hexdigest()


@pytest.mark.parametrize(
    "name, data, sentence",
    [
        ("vocab.txt", "", r"vocab\.txt, which has no piece in it; give"),
        ("vocab.txt", "\n \r\n", r"vocab\.txt, which has no piece in it; give"),
        ("vocab.txt", LIST.encode("utf-16"), r"not a UTF-8 list of pieces \(byte offset 0\)"),
        ("vocab.txt", '{"model": 1}', r"looks like JSON, .* must have a name that ends in \.json"),
        ("words.json", '{"[PAD]": 0}', r"not a tokenizer\.json that this version of tokenizers"),
        (
            "vocab.txt",
            LIST.replace("[MASK]", "a"),
            r"vocab\.txt has no piece \[MASK\] or <mask> among its 11",
        ),
        ("vocab.txt", LIST + "The\nHouse\n", r"--lowercase is true, but 2 of the 13 .*case=false"),
        ("bad.model", "not a model", r"bad\.model ends in \.model but is not a SentencePiece"),
        ("words.json", "", r"not a tokenizer\.json that this version of tokenizers"),
        ("words.json", b"\xff\xfe", r"not a tokenizer\.json that this version of tokenizers"),
    ],
)
def test_files_that_hold_no_list_are_refused(tmp_path, name, data, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_vocabulary(write(tmp_path, data, name))


def test_a_piece_on_two_lines_has_the_id_of_the_last_one(tmp_path):
    """As in Google's load_vocab; the row of the first line is there and stays unused."""
    path = write(tmp_path, f"{LIST}\n\nun\n[MASK]\n")
    loaded = load_vocabulary(path)
    text = "unaffable! un"
    theirs = tokenizers.BertWordPieceTokenizer(str(path)).encode(text, add_special_tokens=False)
    assert theirs.ids == [13, 6, 7, 10, 13]
    assert id_lists(loaded, [text]) == [theirs.ids]
    assert (loaded.size, loaded.special_ids["mask"], loaded.pieces()[13]) == (15, 14, "un")
    exported = tokenizers.Tokenizer.from_str(make_tokenizer_json(loaded))
    assert exported.encode(f"{text} [MASK]", add_special_tokens=False).ids == [*theirs.ids, 14]


def test_a_missing_file_a_renamed_model_and_an_uncased_list_where_case_is_kept_are_refused(
    tmp_path, sentencepiece_path, uncased
):
    with pytest.raises(ValueError, match=r"--vocab is .*none\.txt, which is not a file"):
        load_vocabulary(tmp_path / "none.txt")
    (tmp_path / "m.model").write_bytes(sentencepiece_path.read_bytes())
    with pytest.raises(ValueError, match=rf"is a folder; .*: --vocab={tmp_path}/m\.model$"):
        load_vocabulary(tmp_path)
    renamed = write(tmp_path, sentencepiece_path.read_bytes())
    with pytest.raises(ValueError, match=r"not a UTF-8 list of pieces .*ends in \.model"):
        load_vocabulary(renamed)
    with pytest.raises(ValueError, match=r"--lowercase is false, but .* no piece with a capital"):
        load_vocabulary(uncased, lowercase=False)


def test_a_list_with_accents_and_without_capitals_may_keep_both(tmp_path):
    loaded = load_vocabulary(write(tmp_path, LIST), lowercase=False)
    assert [loaded.pieces()[i] for i in loaded.encode(["un\u00e9 \u00e9"])[0]] == [
        "[UNK]",
        "\u00e9",
    ]


def test_special_pieces_beyond_the_list_have_their_ids(tmp_path):
    tokenizer = make_wordpiece_tokenizer(PIECES[:4] + PIECES[5:], "[UNK]", lowercase=True)
    tokenizer.add_special_tokens(["[MASK]"])
    path = write(tmp_path, tokenizer.to_str(), "tokenizer.json")
    assert load_vocabulary(path).special_ids["mask"] == len(PIECES) - 1


@pytest.mark.parametrize(
    "model, words",
    [
        ({"type": "Other"}, "this version of tokenizers reads"),
        ({"continuing_subword_prefix": ""}, "begin with ##"),
        ({"vocab": {"[PAD]": 0, "[UNK]": 7}}, "whose 2 pieces have 2 of the ids 0 to 7"),
    ],
)
def test_a_tokenizer_json_of_another_model_is_refused(tmp_path, model, words):
    content = bert_json()
    content["model"] = {**content["model"], **model}
    with pytest.raises(ValueError, match=words):
        load_vocabulary(write(tmp_path, json.dumps(content), "tokenizer.json"))
