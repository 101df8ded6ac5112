"""WordPiece as BERT cuts words into pieces: the tokenizers library, each word asked for once."""

import array
import re
from collections.abc import Sequence

import numpy as np
import tokenizers

# Longer words become [UNK]. Source: tokenization.py@eedf5716ce, max_input_chars_per_word=200.
LONGEST_WORD_CHARS = 200
_CACHED_WORDS = 1 << 16  # and as many older ones: together about 20 MB a process
_LONGEST_CACHED_WORD_CHARS = 32  # longer ones do not come back

# Characters that BERT makes words of their own: punctuation and Chinese ones. Not all of them: a
# word that keeps one of the others is cut there by the library, and only remembered as a whole.
_ALONE = (
    "!-/:-@\\[-`{-~"  # ASCII punctuation
    "\u2010-\u2027\u3001-\u3003\u3008-\u3011\uff0c\uff1a\uff1b\uff1f\uff01\uff08\uff09"
    "\u3400-\u4dbf\u4e00-\u9fff"
)
find_words = re.compile(f"[{_ALONE}]|[^ {_ALONE}]+").findall


def wordpiece_normalizer(lowercase: bool) -> tokenizers.normalizers.Normalizer:
    """BERT's clean-up of text: control characters, spaces around Chinese ones, case and accents."""
    return tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )


def wordpiece_tokenizer(pieces: Sequence[str], unk: str, lowercase: bool) -> tokenizers.Tokenizer:
    """BERT's tokeniser over the pieces, in the order of their ids.

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
    tokenizer.normalizer = wordpiece_normalizer(lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


class WordpieceEncoder:
    """Token ids of sentences; a word's ids are kept as bytes, so that no token becomes an int.

    Exact: BERT's normaliser looks at one character at a time and its splitter cuts at spaces and
    around each character of _ALONE, so a sentence's ids are those of its words in turn.
    tests/data_pipeline/test_wordpiece.py compares it with the library on whole lines.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._words = _WordCache(tokenizer, dtype)

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids one after another, and int64[N] how many each of N sentences has."""
        ids_of = self._words.__getitem__
        encoded = [b"".join(map(ids_of, find_words(sentence))) for sentence in sentences]
        size_bytes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), self._dtype), size_bytes // self._dtype.itemsize


class _WordCache(dict[str, bytes]):
    """Words to the bytes of their ids; a word that is not there is encoded and, mostly, kept."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, dtype: np.dtype) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._type_code = dtype.char
        self._older: dict[str, bytes] = {}  # what was here before the last time it was full

    def __missing__(self, word: str) -> bytes:
        # One by one: the library's batches cost more for words, and use threads of their own
        # where the build runs a process a core.
        id_bytes = self._older.pop(word, None)
        if id_bytes is None:
            ids = self._tokenizer.encode(word, add_special_tokens=False).ids
            id_bytes = array.array(self._type_code, ids).tobytes()
        if len(word) <= _LONGEST_CACHED_WORD_CHARS:
            if len(self) >= _CACHED_WORDS:
                self._older = dict(self)
                self.clear()
            self[word] = id_bytes
        return id_bytes
