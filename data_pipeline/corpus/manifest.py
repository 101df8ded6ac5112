"""Build the manifest of a store, whose keys docs/reference/files.md lists."""

import dataclasses
import importlib.metadata
import pathlib
from collections import Counter
from typing import Any

from data_pipeline.corpus.encode import EncodedChunk
from data_pipeline.corpus.lost_characters import record_lost_characters
from data_pipeline.corpus.options import BuildFlags
from data_pipeline.read.cleaning import CHANGES, COUNTS, REASONS
from data_pipeline.read.documents import Source
from data_pipeline.store import FORMAT, FORMAT_VERSION
from data_pipeline.store.writer import compute_digest, describe_arrays, describe_vocabulary
from data_pipeline.vocab import Vocabulary, token_dtype

_LIBRARIES = ("datasketch", "numpy", "sentencepiece", "sentencex", "tokenizers")


@dataclasses.dataclass
class BuildCounts:
    """Add up what a build counts."""

    source_documents: list[int]  # documents of each source
    character_coverage: float | None  # a trained vocabulary's
    # Keys: the names of cleaning.COUNTED; the code points that the vocabulary lacks.
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    lost_characters: Counter[int] = dataclasses.field(default_factory=Counter)

    def add(self, chunk: EncodedChunk) -> None:
        """Add what a chunk counted."""
        self.counts.update(chunk.counts)
        self.lost_characters.update(chunk.lost_characters)
        for number, documents in chunk.source_documents.items():
            self.source_documents[number] += documents


def build_manifest(
    directory: pathlib.Path,
    flags: BuildFlags,
    vocabulary: Vocabulary,
    splits: dict[str, dict[str, int]],
    sources: list[Source],
    counted: BuildCounts,
    near_duplicates: dict[str, int],
) -> dict[str, Any]:
    """Build the manifest of the arrays in `directory`."""
    arrays = describe_arrays(directory)
    both = splits.values()
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "digest": compute_digest(arrays, vocabulary.digest),
        "vocabulary": describe_vocabulary(vocabulary),
        "token_dtype": str(token_dtype(vocabulary.size)),
        "splits": splits,
        "unknown_token_share": sum(split["unknown_tokens"] for split in both)
        / sum(split["tokens"] for split in both),
        "longest_sentence_tokens": max(split["longest_sentence_tokens"] for split in both),
        "dropped": {reason: counted.counts[reason] for reason in REASONS},
        "changed": {change: counted.counts[change] for change in CHANGES},
        "counted": {name: counted.counts[name] for name in COUNTS},
        "near_duplicates": near_duplicates,
        "lost_characters": record_lost_characters(counted.lost_characters),
        "holdout": flags.holdout,
        "build": {
            **dataclasses.asdict(flags.text),
            "lowercase": flags.lowercase,
            "train_vocab": flags.train_vocab,
            "character_coverage": counted.character_coverage,
            **dataclasses.asdict(flags.cleaning),
        },
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "sources": [
            {"path": source.address, "bytes": source.stored_bytes, "documents": documents}
            for source, documents in zip(sources, counted.source_documents, strict=True)
        ],
        "arrays": arrays,
    }
