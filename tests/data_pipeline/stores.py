"""Write small stores from given ids, as a build would write them from text."""

import dataclasses
import json
import pathlib

import numpy as np

from data_pipeline.corpus.lost_characters import record_lost_characters
from data_pipeline.read.cleaning import Changed, CleaningOptions, Counted, Dropped
from data_pipeline.read.options import TextOptions
from data_pipeline.store import FORMAT, FORMAT_VERSION, HELDOUT, MANIFEST, TRAIN
from data_pipeline.store.reader import compute_digest, hash_file
from data_pipeline.store.writer import SplitWriter, describe_arrays
from tests.data_pipeline.corpora import Document
from tests.data_pipeline.encoded import SPECIALS

UNK, FIRST_WORD = 1, 5


def words(count: int) -> list[str]:
    """Return pieces that are words: wa, wb, ... waa."""
    return [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(count)]


def random_documents(
    documents: int, seed: int, vocab_size: int = 205, sentences: int = 40, tokens: int = 5
) -> list[Document]:
    """Draw documents of random words; a repeated sentence is unlikely."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(FIRST_WORD, vocab_size, tokens).tolist() for _ in range(sentences)]
        for _ in range(documents)
    ]


def write_store(
    directory: pathlib.Path,
    train: list[Document],
    heldout: list[Document],
    pieces: list[str] | None = None,
    **manifest_changes: object,
) -> pathlib.Path:
    """Write a store of these documents; its vocabulary is SPECIALS and the pieces."""
    directory.mkdir()
    vocabulary = SPECIALS + (words(200) if pieces is None else pieces)
    path = directory / "vocab.txt"
    path.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    splits = {}
    for name, documents in ((TRAIN, train), (HELDOUT, heldout)):
        writer = SplitWriter(directory / name, np.dtype(np.uint16), len(vocabulary), UNK)
        sentences = [sentence for document in documents for sentence in document]
        writer.append(
            np.array([token for sentence in sentences for token in sentence], np.uint16),
            np.array([len(sentence) for sentence in sentences]),
            np.array([len(document) for document in documents]),
        )
        splits[name] = writer.close()
    arrays = describe_arrays(directory)
    unknown = sum(split["unknown_tokens"] for split in splits.values())
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "digest": compute_digest(arrays, hash_file(path)),
        "vocabulary": {
            "kind": "wordpiece",
            "file": path.name,
            "size": len(vocabulary),
            "lowercase": True,
            "sha256": hash_file(path),
            "special_ids": {"pad": 0, "unk": UNK, "cls": 2, "sep": 3, "mask": 4},
        },
        "token_dtype": "uint16",
        "splits": splits,
        "unknown_token_share": unknown / sum(split["tokens"] for split in splits.values()),
        "longest_sentence_tokens": max(s["longest_sentence_tokens"] for s in splits.values()),
        "dropped": dict.fromkeys(Dropped, 0),
        "changed": dict.fromkeys(Changed, 0),
        "counted": dict.fromkeys(Counted, 0),
        "near_duplicates": {"clusters": 0, "documents": 0, "documents_given_up": 0},
        "lost_characters": record_lost_characters({}),
        "build": dataclasses.asdict(TextOptions())
        | dataclasses.asdict(CleaningOptions())
        | {"character_coverage": None},
        "holdout": len(heldout) / (len(train) + len(heldout)),
        "sources": [{"path": "corpus.txt", "bytes": 1, "documents": len(train) + len(heldout)}],
        "arrays": arrays,
    }
    (directory / MANIFEST).write_text(json.dumps(manifest | manifest_changes), encoding="utf-8")
    return directory


def healthy_store(directory: pathlib.Path, **manifest_changes: object) -> pathlib.Path:
    """Write a store without findings at a sequence length of 32."""
    return write_store(
        directory, random_documents(250, seed=1), random_documents(250, seed=2), **manifest_changes
    )
