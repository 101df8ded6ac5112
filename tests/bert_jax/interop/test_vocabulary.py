"""Which list beside a checkpoint is read, and as what; tokenisers that are not BERT's."""

import json

import pytest

from bert_jax.interop import vocabulary
from tests.bert_jax.small_checkpoints import PIECES


def write(folder, pieces, tokenizer_config=None, normalizer=None):
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if normalizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps({"normalizer": normalizer}))
    return folder


@pytest.mark.parametrize(
    ("more", "tokenizer_config", "normalizer", "lowercase"),
    [
        ([], None, None, True),
        (["Cat", "Dog"], None, None, False),
        ([], {"do_lower_case": False}, None, False),
        (["Cat"], {"do_lower_case": True, "strip_accents": None}, None, True),
        ([], {"model_max_length": 512}, {"lowercase": False, "strip_accents": False}, False),
        ([], {"do_lower_case": False, "tokenize_chinese_chars": True}, None, False),
    ],
    ids=["as it looks", "capitals", "said", "said against looks", "in tokenizer.json", "all said"],
)
def test_the_case_is_as_it_is_said_or_looks(
    tmp_path, more, tokenizer_config, normalizer, lowercase
):
    folder = write(tmp_path, [*PIECES, *more], tokenizer_config, normalizer)
    read = vocabulary.read(folder)
    assert (read.lowercase, read.pieces()) == (lowercase, [*PIECES, *more])


@pytest.mark.parametrize(
    ("tokenizer_config", "words"),
    [
        ({"do_lower_case": True, "strip_accents": False}, "strip_accents is False, not True"),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, "handle_chinese_chars is False"),
        ({"do_lower_case": False, "word_tokenizer_type": "mecab"}, "word_tokenizer_type is mecab"),
        ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type is character, not word"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is False, not True; give a checkpoint"),
    ],
)
def test_a_tokeniser_of_other_rules_is_refused(tmp_path, tokenizer_config, words):
    with pytest.raises(ValueError, match=f"cuts text differently from BERT: {words}"):
        vocabulary.read(write(tmp_path, PIECES, tokenizer_config))


def test_tokens_that_were_added_beside_the_list_are_not_lost(tmp_path):
    folder = write(tmp_path, PIECES)
    (folder / "added_tokens.json").write_text(json.dumps({PIECES[-1]: len(PIECES) - 1}))
    assert vocabulary.read(folder).pieces() == PIECES
    (folder / "added_tokens.json").write_text(json.dumps({"[END]": 13, "[BEGIN]": 12}))
    with pytest.raises(ValueError, match=r"has 2 tokens that .* has not, such as .\[BEGIN\]"):
        vocabulary.read(folder)


def test_a_list_that_its_tokenizer_json_contradicts_is_refused(tmp_path):
    folder = write(tmp_path, PIECES)
    model = {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(PIECES)}}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model}))
    assert vocabulary.read(folder).pieces() == PIECES
    for changed in (
        [*PIECES[:-2], PIECES[-1], PIECES[-2]],
        PIECES[:-1],
        [*PIECES[:6], *PIECES[7:]],
    ):
        with pytest.raises(ValueError, match=r"vocab\.txt (has '|lacks 1 ).*tokenizer\.json bes"):
            vocabulary.read(write(folder, changed))
