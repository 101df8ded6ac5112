"""Load a vocabulary; the name of its file says which kind it is."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece

from data_pipeline.io import Refused, small_files
from data_pipeline.vocab import byte_level
from data_pipeline.vocab.sentencepiece_model import (
    BPE,
    CONTROL,
    NO_RULES,
    RECORDED,
    RULES,
    UNIGRAM,
    WORD_START,
    RuledEncoder,
    read_model,
)
from data_pipeline.vocab.template import SPECIAL_PIECES, find_special_ids, make_bert_template
from data_pipeline.vocab.tokenizer_file import (
    LibraryEncoder,
    load_tokenizer_file,
    make_encode_text,
)
from data_pipeline.vocab.vocabulary import (
    LIST,
    MODEL,
    SENTENCEPIECE,
    TOKENIZER_JSON,
    WORDPIECE,
    Vocabulary,
    encode_documents_whole,
    encode_sentences_alone,
    flatten_ids,
    token_dtype,
)
from data_pipeline.vocab.wordpiece import (
    MAX_WORD_CHARS,
    WordEncoder,
    check_case,
    join_pieces,
    make_wordpiece_normalizer,
    make_wordpiece_tokenizer,
    read_list,
)


def load_vocabulary(
    path: str | pathlib.Path,
    lowercase: bool = True,
    checks_case: bool = True,
    reads_special_tokens: bool = False,
    rules: str = NO_RULES,
) -> Vocabulary:
    """Read a vocabulary: *.model is SentencePiece, *.json a tokenizer.json, the rest a vocab.txt.

    The tokenizers library runs a tokenizer.json unchanged. A vocab.json and the merges.txt next to
    it are read as a tokenizer.json.

    `lowercase` also strips accents, as BERT's uncased models do. A SentencePiece model and a
    tokenizer.json carry their own rules; there `lowercase` is ignored. `checks_case` is for
    third-party lists: one trained here may have no capitals because its text has none.
    With `reads_special_tokens`, for rows of a task, a special token spelled in a text is read as
    that token, as in transformers; in training text its letters are text.
    `rules` are for a SentencePiece model, one of sentencepiece_model.RULES.

    Raises:
      Refused: no such file, no vocabulary, a special piece missing or matched in text, a vocab.txt
        whose case does not fit `lowercase`, a tokenizer.json of another model.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        files = [path / TOKENIZER_JSON, path / LIST, *sorted(path.glob("*.model"))]
        if inside := next(filter(pathlib.Path.is_file, files), None):
            raise Refused(f"--vocab is {path}, which is a folder; give its file: --vocab={inside}")
        raise Refused(
            f"--vocab is {path}, which is not a file; give a vocab.txt, a "
            "tokenizer.json or a *.model, or train one with --train_vocab=wordpiece "
            "--vocab_size=30522"
        )
    if rules not in RULES:
        raise Refused(
            f"{RECORDED} of {path} is {rules!r:.40}; it must be one of {', '.join(RULES)}"
        )
    if rules != NO_RULES and path.suffix != ".model":
        raise Refused(
            f"--sentencepiece_rules is {rules}, but --vocab={path} is no SentencePiece *.model and "
            "has rules of its own; omit the flag"
        )
    data = read_file(path)
    if path.suffix == ".model":
        return _load_sentencepiece(path, data, rules, reads_special_tokens)
    if path.name == byte_level.PIECES and b'"model"' not in data:
        raise Refused(
            f"--vocab is {path}, which has no {byte_level.MERGES} next to it; copy both or give "
            "the tokenizer.json"
        )
    if path.suffix == ".json":
        return load_tokenizer_file(path, data, reads_special_tokens)
    return _load_list(path, data, lowercase, checks_case, reads_special_tokens)


def name_copy(path: pathlib.Path) -> str:
    """Name a copy of a vocabulary's file: a vocab.json with its merges.txt is a tokenizer.json."""
    return TOKENIZER_JSON if _has_merges(path) else path.name


def read_file(path: pathlib.Path) -> bytes:
    """Read a vocabulary's file, and the merges.txt of a vocab.json, into one file's bytes."""
    data = small_files.read_bytes(path)
    return byte_level.join_files(path, data) if _has_merges(path) else data


def _has_merges(path: pathlib.Path) -> bool:
    return path.name == byte_level.PIECES and path.with_name(byte_level.MERGES).is_file()


def load_recorded(
    path: pathlib.Path, record: Mapping[str, Any], reads_special_tokens: bool = False
) -> Vocabulary:
    """Read the vocabulary of a store or a run by the rules in its manifest or record."""
    rules = small_files.field(record, RECORDED, str, path, "none")
    return load_vocabulary(path, record["lowercase"], False, reads_special_tokens, rules)


def _load_list(
    path: pathlib.Path, data: bytes, lowercase: bool, checks_case: bool, reads_special_tokens: bool
) -> Vocabulary:
    pieces = read_list(path, data)
    special_ids = find_special_ids(path, pieces, {})
    if checks_case:
        check_case(path, pieces, lowercase)
    tokenizer = make_wordpiece_tokenizer(pieces, pieces[special_ids["unk"]], lowercase)
    encode_text = make_encode_text(tokenizer, path)
    dtype = token_dtype(len(pieces))
    whole = LibraryEncoder(encode_text, dtype)
    by_word = WordEncoder(encode_text, dtype)
    spelled = [pieces[i] for i in special_ids.values()] if reads_special_tokens else []
    tokenizer.add_special_tokens(spelled)

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        is_spelled = any(token in text for token in spelled for text in texts)
        return whole.encode(texts) if is_spelled else by_word.encode(texts)

    return Vocabulary(
        kind=WORDPIECE,
        path=path,
        file_name=LIST,
        lowercase=lowercase,
        special_ids=special_ids,
        file_bytes=join_pieces(pieces),
        encode=encode,
        encode_documents=encode_sentences_alone(encode, has_spaces=False),
        decode=lambda ids: " ".join(pieces[i] for i in ids).replace(" ##", ""),
        normalize=make_wordpiece_normalizer(lowercase).normalize_str,
        template=make_bert_template(special_ids),
        _pieces=tuple(pieces),
        encode_aligned=whole.encode_aligned,
        max_word_chars=MAX_WORD_CHARS,
    )


def _load_sentencepiece(
    path: pathlib.Path, data: bytes, rules: str, reads_special_tokens: bool
) -> Vocabulary:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
        pieces = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
        model = read_model(data)
    except Exception as error:  # the class depends on the damage
        raise Refused(
            f"{path} ends in .model but is not a SentencePiece model, or is damaged; copy it "
            "again, and give a WordPiece list another name, as in vocab.txt"
        ) from error
    if set(pieces).isdisjoint(SPECIAL_PIECES["mask"]):  # DeBERTa's tokenizers append it
        pieces.append(SPECIAL_PIECES["mask"][0])
    special_ids = find_special_ids(path, pieces, {"unk": processor.unk_id()})
    for special_id in set(special_ids.values()) - {special_ids["unk"]}:
        if special_id in processor.Encode(pieces[special_id]):
            raise Refused(
                f"{path} turns the characters {pieces[special_id]} of a text into the id that "
                "BERT marks sentences with; train the model with --control_symbols instead of "
                "--user_defined_symbols"
            )
    dtype = token_dtype(len(pieces))
    control = [i for i, piece in enumerate(model.pieces) if piece.type == CONTROL]
    spelled_ids = (*control, *special_ids.values()) if reads_special_tokens else ()
    spelled = {pieces[i]: i for i in spelled_ids}
    encoder = RuledEncoder(processor, rules, spelled)

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return flatten_ids(encoder.encode(texts), dtype)

    if model.trainer_spec.treat_whitespace_as_suffix:
        raise Refused(
            f"{path} puts the mark of a space, {WORD_START}, after a word, so that its pieces do "
            "not show where a word begins; train the model without --treat_whitespace_as_suffix"
        )
    adds_space = model.normalizer_spec.add_dummy_prefix
    # A model of words joins the unknown ones in a row.
    is_alone = (
        adds_space
        and model.trainer_spec.model_type in (UNIGRAM, BPE)
        and not any(WORD_START in piece.lstrip(WORD_START) for piece in pieces)
    )
    return Vocabulary(
        kind=SENTENCEPIECE,
        path=path,
        file_name=MODEL,
        lowercase=processor.Normalize(encoder.prepare("A")) in ("a", WORD_START + "a"),
        special_ids=special_ids,
        file_bytes=data,
        encode=encode,
        encode_documents=(
            encode_sentences_alone(encode, has_spaces=False)
            if is_alone
            else encode_documents_whole(encoder.encode_prepared, dtype, encoder.prepare)
        ),
        normalize=lambda text: str(processor.Normalize(encoder.prepare(text))),
        template=make_bert_template(special_ids),
        # An appended [MASK] is left out, as a model's own special pieces are.
        decode=lambda ids: processor.Decode([int(i) for i in ids if i < processor.GetPieceSize()]),
        _pieces=tuple(pieces),
        sentencepiece_rules=rules,
        encode_aligned=encoder.encode_aligned,
        adds_space_before=adds_space,
    )
