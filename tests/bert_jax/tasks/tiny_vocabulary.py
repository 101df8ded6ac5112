"""A vocabulary of a few words, so that tests of tasks can say what ids their rows hold."""

import pathlib

from data_pipeline.vocab import Vocabulary, load_vocabulary

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary_of(words: str, folder: pathlib.Path) -> Vocabulary:
    """The words have the ids 5, 6, ... in their order."""
    path = folder / "vocab.txt"
    path.write_text("\n".join([*PIECES, *words.split()]) + "\n")
    return load_vocabulary(path, lowercase=True)
