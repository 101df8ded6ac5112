"""The tokenised corpus on disk: memory-mapped arrays of two splits and one manifest.

    STORE/manifest.json            written last; without it the folder is not a store
    STORE/vocab.txt | vocab.model  the vocabulary that made the ids
    STORE/{train,heldout}/token_ids.npy         uint16 or uint32 [T], documents one after another
    STORE/{train,heldout}/sentence_offsets.npy  int64 [S+1], first token of each sentence, then T
    STORE/{train,heldout}/document_offsets.npy  int64 [D+1], first sentence of each document, then S
    STORE/{train,heldout}/token_counts.npy      int64 [V], how often each id occurs
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TRAIN, HELDOUT = "train", "heldout"


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of a store; the arrays are read-only memory maps (or plain arrays in tests)."""

    name: str
    token_ids: np.ndarray  # uint16 or uint32 [T]
    sentence_offsets: np.ndarray  # int64 [S+1]
    document_offsets: np.ndarray  # int64 [D+1]
    token_counts: np.ndarray  # int64 [V]

    @property
    def documents(self) -> int:
        return len(self.document_offsets) - 1

    @property
    def sentences(self) -> int:
        return len(self.sentence_offsets) - 1

    @property
    def tokens(self) -> int:
        return len(self.token_ids)


@dataclasses.dataclass(frozen=True)
class Store:
    """An opened store. `manifest` is the JSON file; its keys are public."""

    directory: pathlib.Path
    manifest: dict[str, Any]
    train: Split
    heldout: Split

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocabulary"]["size"])

    @property
    def vocab_path(self) -> pathlib.Path:
        return self.directory / self.manifest["vocabulary"]["file"]

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special pieces, by the names pad, unk, cls, sep, mask."""
        return dict(self.manifest["vocabulary"]["special_ids"])

    @property
    def digest(self) -> str:
        """SHA-256 over every array and the vocabulary: two stores with one digest give one run."""
        return str(self.manifest["digest"])
