"""Fields of a SentencePiece model against what its library says of them."""

import io

import pytest
import sentencepiece

from data_pipeline.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    read_model,
)


def trained(**settings: object) -> bytes:
    model = io.BytesIO()
    words = [f"{a}{b}{c} Word {a}{c}." for a in "bcdf" for b in "aeiou" for c in "lmnr"]
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(words),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"vocab_size": 60, **settings},
    )
    return model.getvalue()


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "unigram", "control_symbols": ["[MASK]"]},
        {"model_type": "bpe", "user_defined_symbols": ["Word"]},
        {"model_type": "unigram", "byte_fallback": True, "vocab_size": 330},
    ],
    ids=str,
)
def test_pieces_are_those_of_the_library(settings):
    data = trained(**settings)
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    model = read_model(data)
    ids = range(library.GetPieceSize())
    assert list(model.pieces) == [library.IdToPiece(i) for i in ids]
    assert list(model.scores) == [library.GetScore(i) for i in ids]
    for kind, says in (
        (UNKNOWN, library.IsUnknown),
        (CONTROL, library.IsControl),
        (UNUSED, library.IsUnused),
        (BYTE, library.IsByte),
    ):
        assert [found == kind for found in model.piece_types] == [says(i) for i in ids]
    words = [p for p, t in zip(model.pieces, model.piece_types, strict=True) if t == USER_DEFINED]
    assert words == settings.get("user_defined_symbols", [])
    assert model.model_type == (BPE if settings["model_type"] == "bpe" else UNIGRAM)
    assert model.has_byte_fallback == settings.get("byte_fallback", False)


def test_rules_are_those_that_the_model_was_trained_with():
    plain = read_model(trained())
    assert plain.charsmap
    assert plain.adds_space_before_text
    assert plain.removes_extra_spaces
    assert plain.marks_spaces
    assert not plain.space_ends_a_word
    other = read_model(
        trained(
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            treat_whitespace_as_suffix=True,
        )
    )
    assert not other.charsmap
    assert not other.adds_space_before_text
    assert not other.removes_extra_spaces
    assert other.space_ends_a_word
