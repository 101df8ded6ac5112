"""Write a vocabulary as the tokenizer.json that Hugging Face's tokenizers and transformers read.

It encodes to the ids of Vocabulary.encode, with these differences. [PAD], [UNK], [CLS], [SEP],
[MASK] and SentencePiece's other control pieces stand for themselves if a text spells them out, as
readers of the file expect. Unigram models may put pieces of equal probability in another order
("00 0" for "0 00"): SentencePiece adds in float32. Letters under heaps of combining marks may be
normalised differently, and if a model falls back to bytes, a "<0x41>" in a text is read as the
byte.

Private-use characters (U+E000 and on) are dropped from WordPiece text, here and in
Vocabulary.encode, as Hugging Face's BERT tokenizers drop them with control characters. Google's
tokenization.py keeps them, and a word with one becomes [UNK]. The ids here are Hugging
Face's, because its library normalizes text here and wherever an exported model is used.
"""

import dataclasses
import json
import pathlib

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from data_pipeline.vocab import TOKENIZER_JSON, WORD_START, WORDPIECE, Vocabulary
from data_pipeline.vocab.byte_level import has_older_splitter, make_splitter
from data_pipeline.vocab.sentencepiece_model import (
    BPE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencepieceModel,
    read_model,
)
from data_pipeline.vocab.template import make_store_template, read_template
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer

_USER_DEFINED_SCORE = -0.1  # Source: unigram_model.cc, sentencepiece v0.2.0


def write_tokenizer_json(vocabulary: Vocabulary, directory: pathlib.Path) -> None:
    """Write tokenizer.json into a folder, unless the format cannot express the vocabulary."""
    if vocabulary.file_name == TOKENIZER_JSON:  # the store has it as the vocabulary
        return
    template = make_store_template(vocabulary.template, vocabulary.special_ids)
    text = make_tokenizer_json(dataclasses.replace(vocabulary, template=template))
    if text is not None:
        (directory / TOKENIZER_JSON).write_text(text, encoding="utf-8")


def make_tokenizer_json(vocabulary: Vocabulary) -> str | None:
    """Return the text of tokenizer.json, which is the same for the same vocabulary.

    None for a SentencePiece model with rules that the format cannot express: words or characters
    for pieces, spaces that end words, are not marked or are kept in runs, pieces across spaces,
    unused pieces, user-defined ones of BPE or that its normaliser would change.
    """
    if vocabulary.file_name == TOKENIZER_JSON:
        text = vocabulary.file_bytes.decode("utf-8-sig")
        settings = json.loads(text)
        if has_older_splitter(settings):
            trained = tokenizers.Tokenizer.from_str(text)
            trained.pre_tokenizer = make_splitter()
            text = trained.to_str(pretty=True) + "\n"
        own = read_template(settings, vocabulary.special_ids, vocabulary.path)
        return text if own == vocabulary.template else _set_template(text, vocabulary)
    pieces = vocabulary.pieces()
    special = {name: pieces[i] for name, i in vocabulary.special_ids.items()}
    registered = list(special.values())
    if vocabulary.kind == WORDPIECE:
        tokenizer = make_wordpiece_tokenizer(pieces, special["unk"], vocabulary.lowercase)
        tokenizer.decoder = decoders.WordPiece(prefix="##")
    else:
        model = read_model(vocabulary.file_bytes)
        if not _can_be_expressed(model):
            return None
        tokenizer = _sentencepiece_tokenizer(model)
        kinds = zip(model.pieces, model.piece_types, strict=True)
        registered += [piece for piece, kind in kinds if kind == CONTROL]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(piece, normalized=False, special=True) for piece in registered]
    )
    return _set_template(tokenizer.to_str(), vocabulary)


def _set_template(text: str, vocabulary: Vocabulary) -> str:
    """Return the text of a tokenizer.json with the vocabulary's template."""
    processor = vocabulary.template.make_processor(vocabulary.pieces())
    settings = json.loads(text) | {"post_processor": processor}
    return tokenizers.Tokenizer.from_str(json.dumps(settings)).to_str(pretty=True) + "\n"


def _can_be_expressed(model: SentencepieceModel) -> bool:
    kinds = zip(model.pieces, model.piece_types, strict=True)
    own = [piece for piece, kind in kinds if kind == USER_DEFINED]
    normalizer = _normalizer(model)
    return (
        model.model_type in (UNIGRAM, BPE)
        and (not own or model.model_type == UNIGRAM)
        and all(normalizer.normalize_str(piece) == piece for piece in own)
        and model.marks_spaces
        and model.removes_extra_spaces
        and not model.space_ends_a_word
        and UNUSED not in model.piece_types
        and not any(WORD_START in piece[1:] for piece in model.pieces)
    )


def _sentencepiece_tokenizer(model: SentencepieceModel) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(_bpe(model) if model.model_type == BPE else _unigram(model))
    tokenizer.normalizer = _normalizer(model)
    # "first", so that text right after a [MASK] continues its word.
    scheme = "first" if model.adds_space_before_text else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(WORD_START, prepend_scheme=scheme)]
    )
    return tokenizer


def _normalizer(model: SentencepieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    # At the start too where no mark is set before a text; elsewhere the mark takes its place.
    ends = r" +\z" if model.adds_space_before_text else r"\A +| +\z"
    steps.append(normalizers.Replace(tokenizers.Regex(ends), ""))
    steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    return normalizers.Sequence(steps)


def _unigram(model: SentencepieceModel) -> models.Unigram:
    """Build the model of pieces with scores; user-defined pieces get SentencePiece's constant."""
    scored = [
        (piece, _USER_DEFINED_SCORE if kind == USER_DEFINED else score)
        for piece, score, kind in zip(model.pieces, model.scores, model.piece_types, strict=True)
    ]
    unk_id = model.piece_types.index(UNKNOWN)
    return models.Unigram(scored, unk_id=unk_id, byte_fallback=model.has_byte_fallback)


def _bpe(model: SentencepieceModel) -> models.BPE:
    """Build the model of pieces as merges of two others, those with higher scores first."""
    id_of = {piece: i for i, piece in enumerate(model.pieces)}
    of_text = {
        piece: score
        for piece, score, kind in zip(model.pieces, model.scores, model.piece_types, strict=True)
        if kind == NORMAL
    }
    merges = sorted(
        (-score, id_of[left], id_of[right])
        for piece, score in of_text.items()
        for left, right in ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        if left in of_text and right in of_text
    )
    return models.BPE(
        id_of,
        [(model.pieces[left], model.pieces[right]) for _, left, right in merges],
        unk_token=model.pieces[model.piece_types.index(UNKNOWN)],
        fuse_unk=True,
        byte_fallback=model.has_byte_fallback,
    )
