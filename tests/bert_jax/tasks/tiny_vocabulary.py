"""Load a vocabulary of a few words, with ids that a test can write down."""

import pathlib

from data_pipeline.vocab import Vocabulary, load_vocabulary

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary_of(words: str, folder: pathlib.Path) -> Vocabulary:
    """Load a vocabulary in which the words have the ids 5, 6, ... in order."""
    path = folder / "vocab.txt"
    path.write_text("\n".join([*PIECES, *words.split()]) + "\n")
    return load_vocabulary(path, lowercase=True)
