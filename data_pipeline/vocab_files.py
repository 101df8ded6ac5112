"""WordPiece lists on disk: a vocab.txt of lines, or a tokenizer.json of Hugging Face's."""

import json
import pathlib
from collections.abc import Sequence

import tokenizers

MAX_PIECES = 1 << 22  # of published vocabularies the largest have a million


def read_list(path: pathlib.Path, data: bytes) -> list[str]:
    """The pieces of a vocab.txt, a line each; without a byte order mark or carriage returns.

    Raises:
      ValueError: not UTF-8, empty, a piece twice.
    """
    lines = data.count(b"\n")
    if lines > MAX_PIECES:
        raise ValueError(
            f"--vocab is {path}, which has {lines:,} lines; at most {MAX_PIECES:,} are read: "
            "give the vocabulary of a BERT"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--vocab is {path}, which is not a UTF-8 list of pieces (byte offset {error.start}); "
            "a SentencePiece model must have a name that ends in .model"
        ) from error
    if "\0" in text:
        raise ValueError(
            f"--vocab is {path}, which has NUL bytes, as a power failure leaves them; copy it again"
        )
    if not text.strip():
        raise ValueError(
            f"--vocab is {path}, which has no piece in it; give a vocab.txt with a piece a line, "
            "or train one with --train_vocab=wordpiece --vocab_size=30522"
        )
    if text.lstrip().startswith("{"):
        raise ValueError(
            f"--vocab is {path}, which opens with a brace: it looks like JSON, not like a list of "
            "pieces; a tokenizer.json must have a name that ends in .json"
        )
    pieces = [line.strip() for line in text.rstrip().split("\n")]
    line_of: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if piece in line_of:
            raise ValueError(
                f"{path} has the piece {piece!r} twice, in lines {line_of[piece]} and {number}; "
                "a line number is an id, so every piece must stand in one line only"
            )
        line_of[piece] = number
    return pieces


def list_bytes(pieces: Sequence[str]) -> bytes:
    """A vocab.txt of pieces in the order of their ids."""
    return "".join(piece + "\n" for piece in pieces).encode()


def read_json(path: pathlib.Path, data: bytes, lowercase: bool) -> list[str]:
    """The pieces of a tokenizer.json in the order of their ids, where it cuts text as BERT does.

    Its longest word is not read: ours is Google's, 200 characters, theirs mostly 100.

    Raises:
      ValueError: not such a file, another model than WordPiece, other rules than BERT's, another
        case than `lowercase`, ids with gaps.
    """
    try:
        # The library raises nothing narrower than Exception.
        tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8-sig"))
    except Exception as error:
        raise ValueError(
            f"--vocab is {path}, which is not a tokenizer.json that this version of tokenizers "
            f"reads ({str(error)[:80]}); give the vocab.txt that lies beside it"
        ) from error
    if not isinstance(tokenizer.model, tokenizers.models.WordPiece):
        raise ValueError(
            f"--vocab is {path}, whose model is {type(tokenizer.model).__name__}; only WordPiece "
            "is read from a tokenizer.json: for the others give the SentencePiece *.model that it "
            "was made from, or train one with --train_vocab"
        )
    _check_rules(path, tokenizer, lowercase)
    id_of = tokenizer.get_vocab(with_added_tokens=True)
    pieces = sorted(id_of, key=id_of.__getitem__)
    if [id_of[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(
            f"--vocab is {path}, whose {len(pieces)} ids are not 0 to {len(pieces) - 1}, each "
            "once; a store needs ids without a gap"
        )
    return pieces


def _check_rules(path: pathlib.Path, tokenizer: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Refuse rules that our encoder does not have: the ids would not be those of the file."""
    model, normalizer = tokenizer.model, tokenizer.normalizer
    is_bert = isinstance(normalizer, tokenizers.normalizers.BertNormalizer)
    if is_bert and normalizer.lowercase != lowercase:
        theirs = json.dumps(normalizer.lowercase)
        raise ValueError(
            f"--lowercase is {json.dumps(lowercase)}, but {path} says {theirs}; use "
            f"--lowercase={theirs}"
        )
    added = tokenizer.get_added_tokens_decoder().values()
    plain = [token.content for token in added if not token.special]
    for rule, holds in (
        ("its normaliser is not BERT's", is_bert),
        ("it keeps control characters", is_bert and normalizer.clean_text),
        ("it keeps Chinese characters together", is_bert and normalizer.handle_chinese_chars),
        (
            "it treats accents otherwise than case",
            is_bert and normalizer.strip_accents in (None, lowercase),
        ),
        (
            "its splitter is not BERT's",
            isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer),
        ),
        ("pieces within words are not marked by ##", model.continuing_subword_prefix == "##"),
        (f"it looks for {plain[:3]} in the text before words", not plain),
    ):
        if not holds:
            raise ValueError(
                f"--vocab is {path}, which cuts text otherwise than BERT: {rule}; give the "
                "tokenizer.json of a BERT, or a vocab.txt where BERT's rules are meant"
            )


def check_case(path: pathlib.Path, pieces: Sequence[str], lowercase: bool) -> None:
    """Refuse a list whose case contradicts the flag: words in capitals would all be unknown.

    Raises:
      ValueError: a cased list where `lowercase` is true, or the other way round.
    """
    words = [piece for piece in pieces if not piece.startswith("[")]
    capitals = sum(piece != piece.lower() for piece in words)
    if lowercase and capitals > len(words) // 100:
        raise ValueError(
            f"--lowercase is true, but {capitals} of the {len(pieces)} pieces of {path} have "
            "capitals and could never occur: it is a cased vocabulary; use --lowercase=false"
        )
    if not lowercase and not capitals and any(piece != piece.upper() for piece in words):
        raise ValueError(
            f"--lowercase is false, but {path} has no piece with a capital, so every capitalised "
            "word would be [UNK]: it is an uncased vocabulary; use --lowercase=true"
        )
