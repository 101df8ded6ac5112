"""Chunks go through processes in order, a bounded number at a time."""

import pathlib

from data_pipeline.cleaning import CleaningOptions
from data_pipeline.encode_corpus import encode_corpus
from data_pipeline.encoded_chunk import TextChunk
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import load_vocabulary


def test_the_reader_stays_a_bounded_distance_ahead(tmp_path: pathlib.Path):
    pieces = tmp_path / "pieces.txt"
    pieces.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789"]))
    read = 0

    def chunks():
        nonlocal read
        while read < 10:
            yield TextChunk([[str(read)]], {0: 1})
            read += 1

    encoded = encode_corpus(
        chunks(), load_vocabulary(pieces), TextOptions(), CleaningOptions(), workers=2
    )
    ahead, ids = [], []
    for done, chunk in enumerate(encoded, 1):
        ahead.append(read - done)
        ids += chunk.token_ids.tolist()
    assert ids == list(range(5, 15))
    assert max(ahead) < 2 * 3
