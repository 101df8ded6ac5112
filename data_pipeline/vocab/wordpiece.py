"""Encode text by WordPiece as BERT does, with the tokenizers library and a cache of words.

Also read WordPiece lists: a vocab.txt with a piece on each line.
"""

import array
import pathlib
import re
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers

from data_pipeline.io import Refused

# Longer words become [UNK]. Source: tokenization.py@eedf5716ce, max_input_chars_per_word=200.
MAX_WORD_CHARS = 200
_CACHED_WORDS = 1 << 16  # and as many older ones: together about 20 MB per process
_MAX_CACHED_WORD_CHARS = 32  # longer ones rarely recur
_CHECKED_EVERY = 1000  # sentences, one of which is also encoded whole and compared
_SURROGATES = re.compile("[\ud800-\udfff]")

# Characters that BERT makes words of their own: punctuation and Chinese ones. The list lacks some:
# a word with one of those is cached whole, and the library splits it.
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
            max_input_chars_per_word=MAX_WORD_CHARS,
        )
    )
    tokenizer.normalizer = make_wordpiece_normalizer(lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


class WordEncoder:
    """Encode sentences to token ids; a word's ids are cached as bytes, never made Python ints.

    `cut` must cut a sentence where the tokenizer never joins. For WordPiece it is find_words, which
    is exact: BERT's normalizer looks at one character at a time and its splitter cuts at
    spaces and around each character of _ALONE, so a sentence has the ids of its words in turn.
    tests/data_pipeline/vocab/test_wordpiece.py compares it with the library on whole lines, and
    one sentence in a thousand is compared wherever sentences are encoded.
    """

    def __init__(
        self,
        encode_text: Callable[[str], tokenizers.Encoding],
        dtype: np.dtype,
        cut: Callable[[str], Sequence[str]] = find_words,
    ) -> None:
        self._encode_text = encode_text
        self._dtype = dtype
        self._cut = cut
        self._words = _WordCache(encode_text, dtype)
        self._encoded = 0  # sentences

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids one after another, and int64[N], the number of ids of each sentence."""
        refuse_one_text(sentences)
        ids_of, cut = self._words.__getitem__, self._cut
        encoded = [b"".join(map(ids_of, cut(sentence))) for sentence in sentences]
        for number in range(-self._encoded % _CHECKED_EVERY, len(sentences), _CHECKED_EVERY):
            self._check(sentences[number], np.frombuffer(encoded[number], self._dtype).tolist())
        self._encoded += len(sentences)
        size_bytes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), self._dtype), size_bytes // self._dtype.itemsize

    def _check(self, sentence: str, ids: list[int]) -> None:
        """Raise Refused if a sentence has other ids than its words in turn."""
        whole = self._encode_text(sentence).ids
        if ids != whole:
            raise Refused(
                f"word by word {sentence[:200]!r} has {len(ids)} tokens, as a whole "
                f"{len(whole)} or others: the words of this vocabulary cannot be encoded one by "
                "one; report the sentence and the vocabulary, and remove the sentence to go on"
            )


def refuse_one_text(texts: object) -> None:
    """Raise Refused for a string, whose characters would be read as texts."""
    if isinstance(texts, str):
        raise Refused(f"{texts!r:.80} is one text, and a list of texts is read; put it in [ ]")


def replace_surrogates(text: str) -> str:
    """Replace each unpaired surrogate, which JSON can hold and UTF-8 cannot, by U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


class _WordCache(dict[str, bytes]):
    """Map words to the bytes of their ids; a missing word is encoded and, unless long, kept."""

    def __init__(self, encode_text: Callable[[str], tokenizers.Encoding], dtype: np.dtype) -> None:
        super().__init__()
        self._encode_text = encode_text
        self._type_code = dtype.char
        self._older: dict[str, bytes] = {}  # the entries from before it was last full

    def __missing__(self, word: str) -> bytes:
        # One by one: the library's batches cost more for words, and use threads of their own
        # where the build runs a process per core.
        id_bytes = self._older.pop(word, None)
        if id_bytes is None:
            id_bytes = array.array(self._type_code, self._encode_text(word).ids).tobytes()
        if len(word) <= _MAX_CACHED_WORD_CHARS:
            if len(self) >= _CACHED_WORDS:
                self._older = dict(self)
                self.clear()
            self[word] = id_bytes
        return id_bytes


MAX_PIECES = 1 << 22  # the largest published vocabularies have a million


def read_list(path: pathlib.Path, data: bytes) -> list[str]:
    """Read the pieces of a vocab.txt; a byte order mark and carriage returns are dropped.

    A piece on several lines has the id of the last one, and the other ids are never given.
    Source: tokenization.py@eedf5716ce load_vocab; transformers and tokenizers do the same.
    """
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
            f"--vocab is {path}, which has no piece in it; give a vocab.txt with one piece per "
            "line, or train one with --train_vocab=wordpiece --vocab_size=30522"
        )
    if text.lstrip().startswith("{"):
        raise Refused(
            f"--vocab is {path}, which opens with a brace: it looks like JSON, not like a list of "
            "pieces; a tokenizer.json must have a name that ends in .json"
        )
    return [line.strip() for line in text.rstrip().split("\n")]


def join_pieces(pieces: Sequence[str]) -> bytes:
    """Make the bytes of a vocab.txt from pieces in the order of their ids."""
    return "".join(piece + "\n" for piece in pieces).encode()


def check_case(path: pathlib.Path, pieces: Sequence[str], lowercase: bool) -> None:
    """Raise Refused if a list's case contradicts the flag: all such words would be unknown."""
    words = _list_words(pieces)
    capitals = _count_capitals(words)
    if lowercase and is_cased(pieces):
        raise Refused(
            f"--lowercase is true, but {capitals} of the {len(pieces)} pieces of {path} have "
            "capitals and could never occur: it is a cased vocabulary; use --lowercase=false"
        )
    strip = make_wordpiece_normalizer(lowercase=True).normalize_str
    if (
        not lowercase
        and all(strip(piece).replace(" ", "") == piece for piece in words)
        and any(piece != piece.upper() for piece in words)
    ):
        raise Refused(
            f"--lowercase is false, but {path} has no piece with a capital or an accent, so every "
            "capitalized word would be [UNK]: it is an uncased vocabulary; use --lowercase=true"
        )


def is_cased(pieces: Sequence[str]) -> bool:
    """Return whether more than one in a hundred pieces has capitals, special pieces aside."""
    words = _list_words(pieces)
    return _count_capitals(words) > len(words) // 100


def _list_words(pieces: Sequence[str]) -> list[str]:
    return [piece for piece in pieces if not piece.startswith("[")]


def _count_capitals(words: Sequence[str]) -> int:
    return sum(piece != piece.lower() for piece in words)
