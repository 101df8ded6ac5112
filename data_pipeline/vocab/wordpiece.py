"""Encode text by WordPiece as BERT does, with the tokenizers library and a cache of words.

Also read WordPiece lists: a vocab.txt with a piece on each line, or Hugging Face's tokenizer.json.
"""

import array
import json
import pathlib
import re
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers

from data_pipeline.io.refused import Refused

# Longer words become [UNK]. Source: tokenization.py@eedf5716ce, max_input_chars_per_word=200.
LONGEST_WORD_CHARS = 200
_CACHED_WORDS = 1 << 16  # and as many older ones: together about 20 MB a process
_LONGEST_CACHED_WORD_CHARS = 32  # longer ones rarely recur
_SURROGATES = re.compile("[\ud800-\udfff]")

# Characters that BERT makes words of their own: punctuation and Chinese ones. Not all of them: a
# word with another such character is split there by the library, and cached unsplit.
_ALONE = (
    "!-/:-@\\[-`{-~"  # ASCII punctuation
    "\u2010-\u2027\u3001-\u3003\u3008-\u3011\uff0c\uff1a\uff1b\uff1f\uff01\uff08\uff09"
    "\u3400-\u4dbf\u4e00-\u9fff"
)
find_words = re.compile(f"[{_ALONE}]|[^ {_ALONE}]+").findall


def make_wordpiece_normalizer(lowercase: bool) -> tokenizers.normalizers.Normalizer:
    """Make BERT's clean-up of text: control characters, Chinese ones, case and accents."""
    return tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )


def make_wordpiece_tokenizer(
    pieces: Sequence[str], unk: str, lowercase: bool
) -> tokenizers.Tokenizer:
    """Make BERT's tokenizer from the pieces in the order of their ids.

    The special pieces are not registered as such: a literal "[SEP]" in a text is three tokens, as
    in Google's code, and never an id that would look like the end of a sentence.
    """
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {piece: i for i, piece in enumerate(pieces)},
            unk_token=unk,
            max_input_chars_per_word=LONGEST_WORD_CHARS,
        )
    )
    tokenizer.normalizer = make_wordpiece_normalizer(lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


class WordEncoder:
    """Encode sentences to token ids; a word's ids are cached as bytes, never made Python ints.

    `cut` must cut a sentence where the tokenizer never joins. For WordPiece it is find_words, which
    is exact: BERT's normalizer looks at one character at a time and its splitter cuts at
    spaces and around each character of _ALONE, so a sentence's ids are those of its words in turn.
    tests/data_pipeline/vocab/test_wordpiece.py compares it with the library on whole lines.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        dtype: np.dtype,
        cut: Callable[[str], Sequence[str]] = find_words,
    ) -> None:
        self._dtype = dtype
        self._cut = cut
        self._words = _WordCache(tokenizer, dtype)

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids one after another, and int64[N], the number of each of N sentences."""
        ids_of, cut = self._words.__getitem__, self._cut
        encoded = [b"".join(map(ids_of, cut(sentence))) for sentence in sentences]
        size_bytes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), self._dtype), size_bytes // self._dtype.itemsize


def replace_surrogates(text: str) -> str:
    """Replace each unpaired surrogate, which JSON can hold and UTF-8 cannot, by U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


class _WordCache(dict[str, bytes]):
    """Map words to the bytes of their ids; a missing word is encoded and, unless long, kept."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, dtype: np.dtype) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._type_code = dtype.char
        self._older: dict[str, bytes] = {}  # the entries from before it was last full

    def __missing__(self, word: str) -> bytes:
        # One by one: the library's batches cost more for words, and use threads of their own
        # where the build runs a process a core.
        id_bytes = self._older.pop(word, None)
        if id_bytes is None:
            ids = self._tokenizer.encode(replace_surrogates(word), add_special_tokens=False).ids
            id_bytes = array.array(self._type_code, ids).tobytes()
        if len(word) <= _LONGEST_CACHED_WORD_CHARS:
            if len(self) >= _CACHED_WORDS:
                self._older = dict(self)
                self.clear()
            self[word] = id_bytes
        return id_bytes


MAX_PIECES = 1 << 22  # of published vocabularies the largest have a million


def read_list(path: pathlib.Path, data: bytes) -> list[str]:
    """Read the pieces of a vocab.txt, without byte order mark or carriage returns."""
    lines = data.count(b"\n")
    if lines > MAX_PIECES:
        raise Refused(
            f"--vocab is {path}, which has {lines:,} lines; at most {MAX_PIECES:,} are read: "
            "give the vocabulary of a BERT"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(
            f"--vocab is {path}, which is not a UTF-8 list of pieces (byte offset {error.start}); "
            "a SentencePiece model must have a name that ends in .model"
        ) from error
    if "\0" in text:
        raise Refused(
            f"--vocab is {path}, which has NUL bytes, as a power failure leaves them; copy it again"
        )
    if not text.strip():
        raise Refused(
            f"--vocab is {path}, which has no piece in it; give a vocab.txt with a piece a line, "
            "or train one with --train_vocab=wordpiece --vocab_size=30522"
        )
    if text.lstrip().startswith("{"):
        raise Refused(
            f"--vocab is {path}, which opens with a brace: it looks like JSON, not like a list of "
            "pieces; a tokenizer.json must have a name that ends in .json"
        )
    pieces = [line.strip() for line in text.rstrip().split("\n")]
    line_of: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if piece in line_of:
            raise Refused(
                f"{path} has the piece {piece!r} twice, in lines {line_of[piece]} and {number}; "
                "a line number is an id, so every piece must stand in one line only"
            )
        line_of[piece] = number
    return pieces


def join_pieces(pieces: Sequence[str]) -> bytes:
    """Make the bytes of a vocab.txt from pieces in the order of their ids."""
    return "".join(piece + "\n" for piece in pieces).encode()


def read_json(path: pathlib.Path, data: bytes, lowercase: bool) -> list[str]:
    """Read the pieces of a tokenizer.json in the order of their ids, if its rules are BERT's.

    Its longest word is ignored: here it is Google's, 200 characters, in those files mostly 100.
    """
    try:
        # The library raises nothing narrower than Exception.
        tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8-sig"))
    except Exception as error:
        raise Refused(
            f"--vocab is {path}, which is not a tokenizer.json that this version of tokenizers "
            f"reads ({str(error)[:80]}); give the vocab.txt that lies beside it"
        ) from error
    if not isinstance(tokenizer.model, tokenizers.models.WordPiece):
        raise Refused(
            f"--vocab is {path}, whose model is {type(tokenizer.model).__name__}; only WordPiece "
            "is read from a tokenizer.json: for the others give the SentencePiece *.model that it "
            "was made from, or train one with --train_vocab"
        )
    _check_rules(path, tokenizer, lowercase)
    id_of = tokenizer.get_vocab(with_added_tokens=True)
    pieces = sorted(id_of, key=id_of.__getitem__)
    if [id_of[piece] for piece in pieces] != list(range(len(pieces))):
        raise Refused(
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
        raise Refused(
            f"--lowercase is {json.dumps(lowercase)}, but {path} says {theirs}; use "
            f"--lowercase={theirs}"
        )
    added = tokenizer.get_added_tokens_decoder().values()
    plain = [token.content for token in added if not token.special]
    is_split = isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)
    strips_alike = is_bert and normalizer.strip_accents in (None, lowercase)
    for rule, holds in (
        ("its normaliser is not BERT's", is_bert),
        ("it keeps control characters", is_bert and normalizer.clean_text),
        ("it keeps Chinese characters together", is_bert and normalizer.handle_chinese_chars),
        ("it treats accents and case differently", strips_alike),
        ("its splitter is not BERT's", is_split),
        ("pieces within words are not marked by ##", model.continuing_subword_prefix == "##"),
        (f"it looks for {plain[:3]} in the text before words", not plain),
    ):
        if not holds:
            raise Refused(
                f"--vocab is {path}, which differs from BERT's rules: {rule}; give the "
                "tokenizer.json of a BERT, or a vocab.txt where BERT's rules are meant"
            )


def check_case(path: pathlib.Path, pieces: Sequence[str], lowercase: bool) -> None:
    """Raise Refused if a list's case contradicts the flag: all such words would be unknown."""
    words = [piece for piece in pieces if not piece.startswith("[")]
    capitals = sum(piece != piece.lower() for piece in words)
    if lowercase and capitals > len(words) // 100:
        raise Refused(
            f"--lowercase is true, but {capitals} of the {len(pieces)} pieces of {path} have "
            "capitals and could never occur: it is a cased vocabulary; use --lowercase=false"
        )
    if not lowercase and not capitals and any(piece != piece.upper() for piece in words):
        raise Refused(
            f"--lowercase is false, but {path} has no piece with a capital, so every capitalised "
            "word would be [UNK]: it is an uncased vocabulary; use --lowercase=true"
        )
