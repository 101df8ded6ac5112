"""Chunks go through processes in order, a bounded number at a time."""

import multiprocessing
import pathlib

import pytest

from data_pipeline.cleaning import CleaningOptions
from data_pipeline.encode_corpus import encode_corpus
from data_pipeline.encoded_chunk import TextChunk
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import Vocabulary, load_vocabulary


@pytest.fixture
def vocabulary(tmp_path: pathlib.Path) -> Vocabulary:
    pieces = tmp_path / "pieces.txt"
    pieces.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789"]))
    return load_vocabulary(pieces)


def test_the_reader_stays_a_bounded_distance_ahead(vocabulary):
    read = 0

    def chunks():
        nonlocal read
        while read < 10:
            yield TextChunk([[str(read)]], {0: 1})
            read += 1

    encoded = encode_corpus(chunks(), vocabulary, TextOptions(), CleaningOptions(), workers=2)
    ahead, ids = [], []
    for done, chunk in enumerate(encoded, 1):
        ahead.append(read - done)
        ids += chunk.token_ids.tolist()
    assert ids == list(range(5, 15))
    assert max(ahead) < 2 * 3


def test_a_process_that_cannot_start_says_why(vocabulary):
    vocabulary.path.unlink()
    chunks = (TextChunk([["0"]], {0: 1}) for _ in range(10))
    encoded = encode_corpus(chunks, vocabulary, TextOptions(), CleaningOptions(), workers=2)
    with pytest.raises(ValueError, match=r"could not start: .*pieces\.txt, which is not a file"):
        list(encoded)


def test_a_process_that_is_killed_is_one_sentence(vocabulary):
    chunks = (TextChunk([["0"]], {0: 1}) for _ in range(10_000))
    encoded = encode_corpus(chunks, vocabulary, TextOptions(), CleaningOptions(), workers=2)
    next(encoded)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(ValueError, match="one of the 2 processes was killed, most likely for"):
        list(encoded)
    assert multiprocessing.active_children() == []
