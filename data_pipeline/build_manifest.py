"""What a build says of its store: the manifest, whose keys data_pipeline.store lists."""

import dataclasses
import importlib.metadata
import pathlib
from collections.abc import Mapping
from typing import Any

from data_pipeline.build_flags import BuildFlags
from data_pipeline.cleaning import NORMALIZED_DOCUMENTS, REASONS
from data_pipeline.lost_characters import lost_record
from data_pipeline.sources import Source
from data_pipeline.store import FORMAT, FORMAT_VERSION
from data_pipeline.store_writing import describe_arrays, store_digest
from data_pipeline.vocab import Vocabulary, token_dtype

_LIBRARIES = ("datasketch", "numpy", "sentencepiece", "sentencex", "tokenizers")


@dataclasses.dataclass(frozen=True)
class BuildFound:
    """What was counted on the way."""

    counts: dict[str, int]  # by the names of cleaning.COUNTED
    source_documents: list[int]  # of each source, as found
    near_duplicates: dict[str, int]  # clusters, documents in them, documents given up
    lost_characters: Mapping[int, int]  # code point that the vocabulary lacks -> how often
    character_coverage: float | None  # of a trained vocabulary


def build_manifest(
    directory: pathlib.Path,
    flags: BuildFlags,
    vocabulary: Vocabulary,
    splits: dict[str, dict[str, int]],
    sources: list[Source],
    found: BuildFound,
) -> dict[str, Any]:
    """The manifest of the arrays that lie in `directory`."""
    arrays = describe_arrays(directory)
    both = splits.values()
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "digest": store_digest(arrays, vocabulary.digest),
        "vocabulary": {
            "kind": vocabulary.kind,
            "file": vocabulary.path.name,
            "size": vocabulary.size,
            "lowercase": vocabulary.lowercase,
            "sha256": vocabulary.digest,
            "special_ids": vocabulary.special_ids,
        },
        "token_dtype": str(token_dtype(vocabulary.size)),
        "splits": splits,
        "unknown_token_share": sum(split["unknown_tokens"] for split in both)
        / sum(split["tokens"] for split in both),
        "longest_sentence_tokens": max(split["longest_sentence_tokens"] for split in both),
        "dropped": {reason: found.counts[reason] for reason in REASONS},
        "changed": {NORMALIZED_DOCUMENTS: found.counts[NORMALIZED_DOCUMENTS]},
        "near_duplicates": found.near_duplicates,
        "lost_characters": lost_record(found.lost_characters),
        "holdout": flags.holdout,
        "build": {
            **dataclasses.asdict(flags.text),
            "lowercase": flags.lowercase,
            "train_vocab": flags.train_vocab,
            "character_coverage": found.character_coverage,
            **dataclasses.asdict(flags.cleaning),
        },
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "sources": [
            {"path": source.address, "bytes": source.stored_bytes, "documents": documents}
            for source, documents in zip(sources, found.source_documents, strict=True)
        ],
        "arrays": arrays,
    }
