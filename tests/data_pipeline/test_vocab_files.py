"""WordPiece lists on disk: what is read alike, and what is refused with a sentence."""

import hashlib
import json
import pathlib

import pytest
import tokenizers

from data_pipeline.tokenizer_json import write_tokenizer_json
from data_pipeline.vocab import load_vocabulary
from data_pipeline.wordpiece import wordpiece_tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "é", "力", "!"]
LIST = "".join(piece + "\n" for piece in PIECES)


def write(folder: pathlib.Path, data: bytes | str, name: str = "vocab.txt") -> pathlib.Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def bert_json(lowercase: bool = True) -> dict:
    return json.loads(wordpiece_tokenizer(PIECES, "[UNK]", lowercase).to_str())


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
        ("vocab.txt", LIST + "\n\nun\n", r"the piece '' twice, in lines 12 and 13"),
        ("vocab.txt", LIST + "un\n", r"the piece 'un' twice, in lines 6 and 12"),
        ("vocab.txt", LIST.encode("utf-16"), r"not a UTF-8 list of pieces \(byte offset 0\)"),
        ("vocab.txt", '{"model": 1}', r"looks like JSON, .* must have a name that ends in \.json"),
        ("vocab.json", '{"[PAD]": 0}', r"not a tokenizer\.json that this version of tokenizers"),
        ("vocab.json", "", r"not a tokenizer\.json that this version of tokenizers"),
        ("vocab.json", b"\xff\xfe", r"not a tokenizer\.json that this version of tokenizers"),
    ],
)
def test_files_that_hold_no_list_are_refused(tmp_path, name, data, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_vocabulary(write(tmp_path, data, name))


def test_a_tokenizer_json_is_the_list_that_made_it(uncased, tmp_path):
    vocabulary = load_vocabulary(uncased)
    write_tokenizer_json(vocabulary, tmp_path)
    again = load_vocabulary(tmp_path / "tokenizer.json")
    assert again.kind == "wordpiece"
    assert again.pieces() == vocabulary.pieces()
    assert again.special_ids == vocabulary.special_ids
    assert again.file_bytes == uncased.read_bytes()


def test_special_pieces_beyond_the_list_have_their_ids(tmp_path):
    tokenizer = wordpiece_tokenizer(PIECES[:4] + PIECES[5:], "[UNK]", lowercase=True)
    tokenizer.add_special_tokens(["[MASK]"])
    path = write(tmp_path, tokenizer.to_str(), "tokenizer.json")
    assert load_vocabulary(path).special_ids["mask"] == len(PIECES) - 1


def changed(part: str, **values: object) -> dict:
    content = bert_json()
    content[part] = {**content[part], **values}
    return content


@pytest.mark.parametrize(
    "content, sentence",
    [
        (changed("model", type="WordLevel"), r"whose model is WordLevel; only WordPiece is read"),
        (changed("normalizer", lowercase=False), r"--lowercase is true, but .* --lowercase=false"),
        (changed("normalizer", strip_accents=False), r"it treats accents otherwise than case"),
        (changed("normalizer", clean_text=False), r"it keeps control characters"),
        (changed("normalizer", handle_chinese_chars=False), r"keeps Chinese characters together"),
        (changed("model", continuing_subword_prefix="@@"), r"within words are not marked by ##"),
        (changed("model", vocab={"[PAD]": 0, "[UNK]": 7}), r"whose 2 ids are not 0 to 1"),
        ({**bert_json(), "normalizer": {"type": "NFC"}}, r"its normaliser is not BERT's"),
        ({**bert_json(), "normalizer": None}, r"its normaliser is not BERT's"),
        ({**bert_json(), "pre_tokenizer": {"type": "Whitespace"}}, r"its splitter is not BERT's"),
    ],
)
def test_a_tokenizer_json_of_other_rules_is_refused(tmp_path, content, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_vocabulary(write(tmp_path, json.dumps(content), "tokenizer.json"))


def test_words_that_are_looked_for_before_others_are_refused(tmp_path):
    tokenizer = wordpiece_tokenizer(PIECES, "[UNK]", lowercase=True)
    tokenizer.add_tokens(["##aff un"])
    path = write(tmp_path, tokenizer.to_str(), "tokenizer.json")
    with pytest.raises(ValueError, match=r"it looks for \['##aff un'\] in the text before words"):
        load_vocabulary(path)


def test_a_sentencepiece_tokenizer_json_is_refused(tmp_path):
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram([("a", -1.0)], unk_id=0))
    path = write(tmp_path, unigram.to_str(), "tokenizer.json")
    with pytest.raises(ValueError, match=r"whose model is Unigram; .* give the SentencePiece"):
        load_vocabulary(path)
