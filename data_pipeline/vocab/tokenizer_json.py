"""Write a vocabulary as the tokenizer.json that Hugging Face's tokenizers and transformers read.

It encodes to the ids of Vocabulary.encode, with these differences. [PAD], [UNK], [CLS], [SEP],
[MASK] and SentencePiece's other control pieces stand for themselves if a text spells them out, as
readers of the file expect, and text right after one continues its word. Unigram models may put
pieces of equal probability in another order ("00 0" for "0 00"): SentencePiece adds in float32.
The library composes less than SentencePiece does, and may drop a mark: in text that is not NFC
(Hangul in jamo, decomposed kana and Vietnamese), half-width kana with marks, and letters under
heaps of marks. If a model falls back to bytes, a "<0x41>" in a text is read as the byte.

Private-use characters (U+E000 and on) are dropped from WordPiece text, here and in
Vocabulary.encode, as Hugging Face's BERT tokenizers drop them with control characters. Google's
tokenization.py keeps them, and a word with one becomes [UNK]. The ids here are Hugging
Face's, because its library normalizes text here and wherever an exported model is used.
"""

import dataclasses
import json
import pathlib
import unicodedata
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from data_pipeline.io import Refused
from data_pipeline.vocab import MODEL, TOKENIZER_JSON, WORD_START, WORDPIECE, Vocabulary
from data_pipeline.vocab.byte_level import is_trained_here
from data_pipeline.vocab.sentencepiece_model import (
    BPE,
    CONTROL,
    NO_RULES,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    list_replaced,
    read_model,
)
from data_pipeline.vocab.template import make_store_template, read_template
from data_pipeline.vocab.tokenizer_file import make_encode_text, open_tokenizer
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer

_USER_DEFINED_SCORE = -0.1  # Source: unigram_model.cc, sentencepiece v0.2.0


def write_tokenizer_json(vocabulary: Vocabulary, directory: pathlib.Path) -> None:
    """Write tokenizer.json into a folder, unless the format cannot express the vocabulary."""
    if vocabulary.file_name == TOKENIZER_JSON:  # the store has it as the vocabulary
        _check(directory / TOKENIZER_JSON, vocabulary)
        return
    template = make_store_template(vocabulary.template, vocabulary.special_ids)
    export_tokenizer_json(dataclasses.replace(vocabulary, template=template), directory)


def export_tokenizer_json(vocabulary: Vocabulary, directory: pathlib.Path) -> None:
    """Write tokenizer.json into a folder, if the format can express the vocabulary, and check it.

    No file is left for a SentencePiece model if the library gives other ids than the model does.

    Raises:
      Refused: the library gives a text other ids than the vocabulary.
    """
    text = make_tokenizer_json(vocabulary)
    if text is not None:
        (directory / TOKENIZER_JSON).write_text(text, encoding="utf-8")
        _check(directory / TOKENIZER_JSON, vocabulary)


def _check(path: pathlib.Path, vocabulary: Vocabulary) -> None:
    """Raise Refused if the library gives other ids by the file; for a MODEL remove the file."""
    different = _find_difference(path, vocabulary)
    if different is None:
        return
    if vocabulary.file_name == MODEL:
        path.unlink()
        return
    raise Refused(
        f"the tokenizers library reads {different!r} by {path} as other tokens than "
        f"{vocabulary.path} gives; report the text and the vocabulary, or give another vocabulary"
    )


# Case, accents, spaces and the splits of GPT-2; other scripts.
_CHECKED_TEXTS = (
    "The quick brown fox can't jump; it's 1,234.5 pounds (or so)!",
    " two  spaces, a\ttab and an\u00a0end ",
    "Ceci n'est pas une pipe \u2014 \u00fcber, na\u00efve, cafe\u0301",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u65e5\u672c\u8a9e",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \U0001f642",
    "",
)
_AFTER = (".", ", and a", " word.", "! ")  # texts that follow a special token


def _keeps_text_after_special_tokens(library: tokenizers.Tokenizer, vocabulary: Vocabulary) -> bool:
    """Return whether text after a special token must have the same ids as after other text.

    A third-party file may define this in another way. The format cannot express it for a model
    that puts no space before a text.
    """
    if vocabulary.file_name == TOKENIZER_JSON:
        return is_trained_here(json.loads(library.to_str()))
    is_model = vocabulary.file_name == MODEL
    return not is_model or read_model(vocabulary.file_bytes).normalizer_spec.add_dummy_prefix


def _find_difference(path: pathlib.Path, vocabulary: Vocabulary) -> str | None:
    """Return the first text to which file and vocabulary give different ids; None without one."""
    library = open_tokenizer(path, path.read_bytes())
    read = make_encode_text(library, path)

    def encode(text: str) -> list[int]:
        return vocabulary.encode([text])[0].tolist()

    for text in _CHECKED_TEXTS:
        if read(text).ids != encode(text):
            return text
    if not _keeps_text_after_special_tokens(library, vocabulary):
        return None
    mask_id = vocabulary.special_ids["mask"]
    mask, before = vocabulary.pieces()[mask_id], encode("a")
    for following in _AFTER:
        whole = encode(f"a{following}")
        text = f"a {mask}{following}"
        tokens = read(text).ids
        # Comparable only if no piece spans the boundary.
        is_comparable = whole[: len(before)] == before and mask_id in tokens
        if is_comparable and tokens[tokens.index(mask_id) + 1 :] != whole[len(before) :]:
            return text
    return None


def make_tokenizer_json(vocabulary: Vocabulary) -> str | None:
    """Return the text of tokenizer.json, which is the same for the same vocabulary.

    None for a SentencePiece model with rules that the format cannot express: the rules of
    sentencepiece_model.py, words or characters for pieces, spaces that end words, are not marked or
    are kept in runs, pieces across spaces, a normalizer that replaces several characters at once,
    unused pieces, user-defined ones of BPE or that its normalizer would change.
    """
    if vocabulary.file_name == TOKENIZER_JSON:
        text = vocabulary.file_bytes.decode("utf-8-sig")
        own = read_template(json.loads(text), vocabulary.special_ids, vocabulary.path)
        return text if own == vocabulary.template else _set_template(text, vocabulary)
    pieces = vocabulary.pieces()
    special = {name: pieces[i] for name, i in vocabulary.special_ids.items()}
    registered = list(special.values())
    if vocabulary.kind == WORDPIECE:
        tokenizer = make_wordpiece_tokenizer(pieces, special["unk"], vocabulary.lowercase)
        tokenizer.decoder = decoders.WordPiece(prefix="##")
    else:
        model = read_model(vocabulary.file_bytes)
        if vocabulary.sentencepiece_rules != NO_RULES or not _can_be_expressed(model):
            return None
        tokenizer = _sentencepiece_tokenizer(model)
        registered += [each.piece for each in model.pieces if each.type == CONTROL]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(piece, normalized=False, special=True) for piece in registered]
    )
    return _set_template(tokenizer.to_str(), vocabulary)


def _set_template(text: str, vocabulary: Vocabulary) -> str:
    """Return the text of a tokenizer.json with the vocabulary's template."""
    processor = vocabulary.template.make_processor(vocabulary.pieces())
    settings = json.loads(text) | {"post_processor": processor}
    return tokenizers.Tokenizer.from_str(json.dumps(settings)).to_str(pretty=True) + "\n"


def _can_be_expressed(model: Any) -> bool:
    own = [each.piece for each in model.pieces if each.type == USER_DEFINED]
    model_type, rules = model.trainer_spec.model_type, model.normalizer_spec
    normalizer = _normalizer(model)
    return (
        model_type in (UNIGRAM, BPE)
        and (not own or model_type == UNIGRAM)
        and all(normalizer.normalize_str(piece) == piece for piece in own)
        and rules.escape_whitespaces
        and rules.remove_extra_whitespaces
        and not any(map(_spans_characters, list_replaced(rules.precompiled_charsmap)))
        and not any(each.type == UNUSED or WORD_START in each.piece[1:] for each in model.pieces)
    )


def _spans_characters(replaced: str) -> bool:
    """Return whether a text has a character that no mark is, where the library looks at each alone.

    NFKC composes such texts too (letters of Hangul), which the library does in its own way.
    """
    has_more = any(unicodedata.category(char)[0] not in "MC" for char in replaced[1:])
    return has_more and unicodedata.is_normalized("NFKC", replaced)


def _sentencepiece_tokenizer(model: Any) -> tokenizers.Tokenizer:
    is_bpe = model.trainer_spec.model_type == BPE
    tokenizer = tokenizers.Tokenizer(_bpe(model) if is_bpe else _unigram(model))
    tokenizer.normalizer = _normalizer(model)
    # "first", so that text right after a [MASK] continues its word.
    scheme = "first" if model.normalizer_spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(WORD_START, prepend_scheme=scheme)]
    )
    return tokenizer


def _normalizer(model: Any) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    rules = model.normalizer_spec
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    # Runs first: a search for the end within each takes quadratic time.
    steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    # Without a mark before the text, the space goes at its start too.
    ends = r" \z" if rules.add_dummy_prefix else r"\A | \z"
    steps.append(normalizers.Replace(tokenizers.Regex(ends), ""))
    return normalizers.Sequence(steps)


def _unigram(model: Any) -> models.Unigram:
    """Build the model of pieces with scores; user-defined pieces get SentencePiece's constant."""
    scored = [
        (each.piece, _USER_DEFINED_SCORE if each.type == USER_DEFINED else each.score)
        for each in model.pieces
    ]
    byte_fallback = model.trainer_spec.byte_fallback
    return models.Unigram(scored, unk_id=_find_unknown(model), byte_fallback=byte_fallback)


def _find_unknown(model: Any) -> int:
    return [each.type for each in model.pieces].index(UNKNOWN)


def _bpe(model: Any) -> models.BPE:
    """Build the model of pieces as merges of two others, higher scores first."""
    pieces = [each.piece for each in model.pieces]
    id_of = {piece: i for i, piece in enumerate(pieces)}
    score_of = {each.piece: each.score for each in model.pieces if each.type == NORMAL}
    merges = sorted(
        (-score, id_of[left], id_of[right])
        for piece, score in score_of.items()
        for left, right in ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        if left in score_of and right in score_of
    )
    return models.BPE(
        id_of,
        [(pieces[left], pieces[right]) for _, left, right in merges],
        unk_token=pieces[_find_unknown(model)],
        fuse_unk=True,
        byte_fallback=model.trainer_spec.byte_fallback,
    )
