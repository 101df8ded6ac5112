"""Write vocabularies, train small SentencePiece models, and encode sentences to id lists."""

import io
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece

from data_pipeline.vocab import Vocabulary

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"{a}{b}{c} Word {a}{c}." for a in "bcdf" for b in "aeiou" for c in "lmnr"]


def write_list(path: pathlib.Path, pieces: Iterable[str]) -> pathlib.Path:
    """Write a WordPiece list: SPECIALS, then these pieces."""
    path.write_text("".join(f"{piece}\n" for piece in (*SPECIALS, *pieces)), encoding="utf-8")
    return path


def id_lists(vocabulary: Vocabulary, sentences: Sequence[str]) -> list[list[int]]:
    """Return the ids of each sentence: the output of `encode`, split by its lengths."""
    ids, lengths = vocabulary.encode(sentences)
    assert len(ids) == lengths.sum()
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def train_model(lines: Iterable[str] = WORDS, **settings: object) -> bytes:
    """Train a SentencePiece model by the library, with settings that train_sentencepiece lacks."""
    model = io.BytesIO()
    given = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2, **settings}
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, **given
    )
    return model.getvalue()
