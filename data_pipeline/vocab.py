"""Vocabularies: text to token ids and back. The file says which kind: vocab.txt or *.model."""

import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import sentencepiece

from data_pipeline.wordpiece import WordpieceEncoder, wordpiece_tokenizer

WORDPIECE, SENTENCEPIECE = "wordpiece", "sentencepiece"
FILE_NAMES = {WORDPIECE: "vocab.txt", SENTENCEPIECE: "vocab.model"}  # in a store

# The pieces that BERT needs, by the names the store uses. The second spelling is ALBERT's.
SPECIAL_PIECES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
WORD_START = "\u2581"  # SentencePiece's mark for the space before a word

Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Token ids of a text, without special tokens: what the store holds.

    `encode` turns N sentences into the ids of all, one after another (token_dtype of the size),
    and int64[N] how many each sentence has, 0 where nothing is left of it. `decode` turns ids back
    into text, as far as the vocabulary keeps it.
    """

    kind: str  # WORDPIECE or SENTENCEPIECE
    path: pathlib.Path
    lowercase: bool
    special_ids: dict[str, int]  # by the names pad, unk, cls, sep, mask
    digest: str  # SHA-256 of the file
    encode: Encode
    decode: Callable[[Sequence[int]], str]
    _pieces: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self._pieces)

    def pieces(self) -> list[str]:
        """The pieces in the order of their ids."""
        return list(self._pieces)

    @property
    def is_continuation(self) -> np.ndarray:
        """bool[V]: whether a piece goes on with the word of the piece before it."""
        if self.kind == WORDPIECE:
            continues = [piece.startswith("##") for piece in self._pieces]
        else:
            continues = [not piece.startswith(WORD_START) for piece in self._pieces]
            for special_id in self.special_ids.values():
                continues[special_id] = False
        return np.array(continues, dtype=bool)


def load_vocabulary(path: str | pathlib.Path, lowercase: bool = True) -> Vocabulary:
    """Read a vocabulary: *.model is SentencePiece, everything else a WordPiece list of lines.

    `lowercase` also strips accents, as BERT's uncased models do. A SentencePiece model carries its
    own normalisation; there `lowercase` is ignored and the result says what the model does.

    Raises:
      ValueError: no such file, no vocabulary, a special piece missing, a piece twice, or a list
        whose case does not fit `lowercase`.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(
            f"--vocab is {path}, which is not a file; give a vocab.txt or a *.model, "
            "or train one with --train_vocab=wordpiece --vocab_size=30522"
        )
    data = path.read_bytes()
    if path.suffix == ".model":
        return _load_sentencepiece(path, data)
    return _load_wordpiece(path, data, lowercase)


def _load_wordpiece(path: pathlib.Path, data: bytes, lowercase: bool) -> Vocabulary:
    pieces = _read_pieces(path, data)
    special_ids = _find_special_ids(path, pieces)
    _check_case(path, pieces, lowercase)
    tokenizer = wordpiece_tokenizer(pieces, pieces[special_ids["unk"]], lowercase)
    return Vocabulary(
        kind=WORDPIECE,
        path=path,
        lowercase=lowercase,
        special_ids=special_ids,
        digest=hashlib.sha256(data).hexdigest(),
        encode=WordpieceEncoder(tokenizer, token_dtype(len(pieces))).encode,
        decode=lambda ids: " ".join(pieces[i] for i in ids).replace(" ##", ""),
        _pieces=tuple(pieces),
    )


def _load_sentencepiece(path: pathlib.Path, data: bytes) -> Vocabulary:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"{path} ends in .model but is not a SentencePiece model; a WordPiece list must have "
            "another name, as in vocab.txt"
        ) from error
    pieces = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
    return Vocabulary(
        kind=SENTENCEPIECE,
        path=path,
        lowercase=processor.Normalize("A") in ("a", WORD_START + "a"),
        special_ids=_find_special_ids(path, pieces),
        digest=hashlib.sha256(data).hexdigest(),
        encode=lambda sentences: _encode_sentencepiece(processor, sentences),
        decode=lambda ids: processor.Decode([int(i) for i in ids]),
        _pieces=tuple(pieces),
    )


def _encode_sentencepiece(
    processor: sentencepiece.SentencePieceProcessor, sentences: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    # One thread: the build runs a process a core.
    encoded = processor.Encode(list(sentences), num_threads=1)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    dtype = token_dtype(processor.GetPieceSize())
    flat = itertools.chain.from_iterable(encoded)
    return np.fromiter(flat, dtype, int(lengths.sum())), lengths


def _read_pieces(path: pathlib.Path, data: bytes) -> list[str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--vocab is {path}, which is not a UTF-8 list of pieces (byte offset {error.start}); "
            "a SentencePiece model must have a name that ends in .model"
        ) from error
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


def _find_special_ids(path: pathlib.Path, pieces: Sequence[str]) -> dict[str, int]:
    id_of = {piece: i for i, piece in enumerate(pieces)}
    special_ids = {}
    for name, spellings in SPECIAL_PIECES.items():
        found = [id_of[spelling] for spelling in spellings if spelling in id_of]
        if not found:
            raise ValueError(
                f"{path} has no piece {spellings[0]} among its {len(pieces)}; BERT needs "
                f"{_listed(spelled[0] for spelled in SPECIAL_PIECES.values())}: take a BERT "
                "vocabulary, or train one with --train_vocab"
            )
        special_ids[name] = found[0]
    return special_ids


def _check_case(path: pathlib.Path, pieces: Sequence[str], lowercase: bool) -> None:
    """Refuse a list whose case contradicts the flag: words in capitals would all be unknown."""
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


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}"
