"""Read real sentences in English, German and Chinese, to test vocabularies."""

import functools
import gzip
import pathlib

_TREEBANKS = {"de": "de_gsd-ud-dev.conllu.gz", "zh": "zh_gsdsimp-ud-dev.conllu.gz"}


@functools.cache
def sentences(shared_data: pathlib.Path, language: str) -> tuple[str, ...]:
    """Read the sentences of a treebank, or, in English, the lines of a novel."""
    if language == "en":
        (path,) = (shared_data / "pretrain" / "gutenberg").glob("Alice*.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return tuple(line.strip() for line in file)
    path = shared_data / "multilingual" / _TREEBANKS[language]
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return tuple(line[9:].strip() for line in file if line.startswith("# text = "))
