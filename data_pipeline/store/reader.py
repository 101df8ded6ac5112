"""Open and verify a tokenized corpus on disk: mapped arrays of two splits and one manifest.

docs/reference/files.md lists the files and the keys of the manifest, which are public. A store of
the kind "examples" (ready-made ones) has the arrays of writer.ExampleWriter in place of a text.
"""

import dataclasses
import hashlib
import io
import math
import pathlib
import re
import shlex
from collections.abc import Callable, Container
from typing import Annotated, Any, BinaryIO, Literal, NotRequired, TypedDict

import numpy as np

from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import Count, DamagedFile, parse_record
from data_pipeline.vocab import FILE_NAMES, Vocabulary, load_recorded

FORMAT = "bert_jax store"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TRAIN, HELDOUT = "train", "heldout"
TEXT, EXAMPLES = "text", "examples"  # kinds of store; EXAMPLES is also a folder of its arrays
ARRAY_FOLDERS = (EXAMPLES, TRAIN, HELDOUT)
SPLIT_ROWS = {TRAIN: "train_rows", HELDOUT: "heldout_rows"}  # arrays of EXAMPLES
WALKS, REFERENCES = "walks", "references"  # folders of counts that training makes
PARTS = (*ARRAY_FOLDERS, *FILE_NAMES, WALKS, REFERENCES)  # all names in a store but MANIFEST


class SpecialIds(TypedDict):
    """Hold the ids of the special tokens."""

    pad: Count
    unk: Count
    cls: Count
    sep: Count
    mask: Count


class VocabularyEntry(TypedDict):
    """Describe the vocabulary in a manifest."""

    kind: str
    file: str
    size: Count
    lowercase: bool
    sha256: str
    special_ids: SpecialIds
    sentencepiece_rules: NotRequired[str]


@dataclasses.dataclass(frozen=True)
class TextSplit:
    """Describe a split of a store of documents."""

    documents: Count
    sentences: Count
    tokens: Count
    unknown_tokens: Count
    one_sentence_documents: Count
    longest_sentence_tokens: Count


@dataclasses.dataclass(frozen=True)
class TextSplits:
    """Hold both splits of a store of documents."""

    train: TextSplit
    heldout: TextSplit


class LostEntry(TypedDict):
    """Count the characters that the vocabulary lacks."""

    characters: Count
    occurrences: Count
    most_frequent: dict[str, Count]


class ArrayEntry(TypedDict):
    """Describe an array file."""

    sha256: str


class SourceEntry(TypedDict):
    """Describe a file or shard that was read."""

    path: str


class BuildEntry(TypedDict, total=False):
    """Hold the flags of a build that reports read."""

    normalize: str
    near_duplicates: str
    fallback_encoding: str
    character_coverage: float | None


class AnyManifest(TypedDict):
    """Declare the fields in the manifests of both kinds of store."""

    digest: str
    vocabulary: VocabularyEntry
    sources: list[SourceEntry]
    arrays: dict[str, ArrayEntry]


class TextManifest(AnyManifest):
    """Hold the manifest of a store of documents."""

    token_dtype: Literal["uint16", "uint32"]
    splits: TextSplits
    unknown_token_share: float
    longest_sentence_tokens: Count
    dropped: dict[str, Count]
    changed: dict[str, Count]
    counted: dict[str, Count]
    near_duplicates: dict[str, Count]
    lost_characters: LostEntry
    holdout: Annotated[float, math.ulp(0.0), 1.0]
    build: BuildEntry


class ExamplesOfLength(TypedDict):
    """Describe the ready-made examples of one length."""

    max_predictions_per_seq: Count
    train: Count
    heldout: Count
    random_next: Count


class ExamplesManifest(AnyManifest):
    """Hold the manifest of a store of ready-made examples."""

    kind: Literal["examples"]
    examples: dict[str, ExamplesOfLength]


# Number of ids that open_store checks. In a larger store it checks blocks spread from start to end,
# so that it does not read a file of 10 GB completely.
_CHECKED_TOKENS = 1 << 26
_CHECKED_BLOCKS = 64
_BLOCK_BYTES = 1 << 22

# "gs://bucket/name", and "gs:/bucket/name", which pathlib makes of it; not "C:/name".
_ADDRESS = re.compile(r"://|^[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclasses.dataclass(frozen=True)
class Split:
    """Hold one split of a store; arrays are read-only memory maps (plain if made in memory)."""

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
    """Hold an opened store. `manifest` is the JSON file; its keys are public."""

    directory: pathlib.Path
    manifest: dict[str, Any]
    train: Split
    heldout: Split

    @property
    def kind(self) -> str:
        """Return TEXT or EXAMPLES; splits of EXAMPLES have only token_counts."""
        return EXAMPLES if self.manifest.get("kind") == EXAMPLES else TEXT

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocabulary"]["size"])

    @property
    def vocab_path(self) -> pathlib.Path:
        return small_files.join_inside(self.directory, self.manifest["vocabulary"]["file"])

    def load_vocabulary(self) -> Vocabulary:
        """Load the vocabulary, which the manifest describes."""
        return load_recorded(self.vocab_path, self.manifest["vocabulary"])

    @property
    def special_ids(self) -> dict[str, int]:
        """Return the ids of the special tokens by the names pad, unk, cls, sep, mask."""
        return dict(self.manifest["vocabulary"]["special_ids"])

    @property
    def digest(self) -> str:
        """Return the SHA-256 over all arrays and the vocabulary: equal digests give equal runs."""
        return str(self.manifest["digest"])


def open_store(directory: str | pathlib.Path) -> Store:
    """Map a store into memory after checking that it is complete and fits its vocabulary.

    Shapes and dtypes: see Split. Reads only the ends of the offsets, the counts and a bounded
    number of ids.

    Raises:
      Refused: an address such as gs://, not a store, another version, a file missing or
        changed, ids beyond the vocabulary; the message names the file and how to fix it.
    """
    check_is_local("the store", str(directory))
    directory = pathlib.Path(directory)
    manifest = read_manifest(directory)
    vocabulary = manifest["vocabulary"]
    last_id = max(vocabulary["special_ids"].values())
    if last_id >= vocabulary["size"]:
        raise DamagedFile(
            f"{directory / MANIFEST}: 'special_ids' has {last_id}, beyond the "
            f"{vocabulary['size']} pieces of the vocabulary; copy the store again"
        )
    path = small_files.join_inside(directory, vocabulary["file"])
    _check_vocabulary_file(path, directory, vocabulary["sha256"])
    train, heldout = (_open_split(directory, name, manifest) for name in (TRAIN, HELDOUT))
    return Store(directory=directory, manifest=manifest, train=train, heldout=heldout)


def check_is_local(name: str, path: str) -> None:
    """Raise Refused if a path, called `name` in the message, is an address."""
    if _ADDRESS.search(path):
        raise Refused(
            f"{name} is {path}, but must be a local or mounted folder; copy the files here, "
            "or give the path where the bucket is mounted"
        )


def is_store(directory: pathlib.Path) -> bool:
    """Return whether a build finished in this folder."""
    return (directory / MANIFEST).is_file()


def read_manifest(directory: pathlib.Path) -> dict[str, Any]:
    """Read the manifest of a store of this version.

    Raises:
      Refused: it is missing, damaged or of another version.
    """
    path = directory / MANIFEST
    if directory.is_file():
        name = directory.name.partition(".")[0] or "mine"
        raise Refused(
            f"{directory} is a file, not a store; if it is your text, make a store of it with: "
            f"python -m data_pipeline.build --input={shlex.quote(str(directory))} "
            f"--output=stores/{shlex.quote(name)} --train_vocab=wordpiece --vocab_size=8192"
        )
    if not path.exists():
        problem = f"it has no {MANIFEST} (a build that did not finish leaves none)"
        if not directory.exists():
            problem = "there is no such folder"
            if not directory.is_absolute():  # a run may have recorded it elsewhere
                problem += f" in the current one, {pathlib.Path.cwd()}"
        raise Refused(
            f"{directory} is not a store: {problem}; make one with: python -m data_pipeline.build "
            f"--input='corpus/*.txt' --output={shlex.quote(str(directory))} "
            "--train_vocab=wordpiece --vocab_size=8192"
        )
    return parse_manifest(small_files.read_bytes(path, directory), str(directory))


def parse_manifest(data: bytes, directory: str) -> dict[str, Any]:
    """Parse the manifest of a store of this version; `directory` is for errors.

    Raises:
      Refused: it is damaged or of another version.
    """
    path = f"{directory}/{MANIFEST}"
    try:
        manifest = small_files.parse_object(data, path)
        if manifest.get("format") != FORMAT:
            raise Refused(f"{path} is not the manifest of a {FORMAT}; build one with data_pipeline")
        version = manifest.get("format_version")
        if version != FORMAT_VERSION:
            raise Refused(
                f"{directory} has format version {version!r:.80}, but this code reads "
                f"version {FORMAT_VERSION}; build the store again, or use the code that built it"
            )
        is_text = manifest.get("kind", TEXT) == TEXT
        parse_record(manifest, TextManifest if is_text else ExamplesManifest, path)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; copy the store again, or build it again") from None
    return manifest


def _check_vocabulary_file(path: pathlib.Path, directory: pathlib.Path, digest: str) -> None:
    if not path.exists():
        raise Refused(f"{path} is missing from the store; copy the store again")
    if hashlib.sha256(small_files.read_bytes(path, directory)).hexdigest() != digest:
        raise Refused(
            f"{path} is not the vocabulary that encoded this store (its SHA-256 differs "
            "from the manifest's); copy the store again, or build one with this vocabulary"
        )


def _open_split(directory: pathlib.Path, name: str, manifest: dict[str, Any]) -> Split:
    """Open a split; a split of ready-made examples has only the counts of its tokens."""
    vocab_size = manifest["vocabulary"]["size"]
    counts = open_array(directory, f"{name}/token_counts.npy", "int64", (vocab_size,))
    if manifest.get("kind") == EXAMPLES:
        no_offsets = np.zeros(1, np.int64)
        return Split(name, np.zeros(0, np.uint16), no_offsets, no_offsets, counts)
    expected = manifest["splits"][name]
    sizes = {
        "token_ids": (manifest["token_dtype"], expected["tokens"]),
        "sentence_offsets": ("int64", expected["sentences"] + 1),
        "document_offsets": ("int64", expected["documents"] + 1),
    }
    arrays = {
        array: open_array(directory, f"{name}/{array}.npy", dtype, (size,))
        for array, (dtype, size) in sizes.items()
    }
    split = Split(name, **arrays, token_counts=counts)
    for array, last in (("sentence_offsets", split.tokens), ("document_offsets", split.sentences)):
        first_to_last = (int(arrays[array][0]), int(arrays[array][-1]))
        if first_to_last != (0, last):
            raise Refused(
                f"{directory / name / array}.npy runs from {first_to_last[0]} to "
                f"{first_to_last[1]}, but should run from 0 to {last}; copy the store again"
            )
    largest = _find_largest_id(split.token_ids)
    if largest >= vocab_size:
        raise Refused(
            f"{directory / name}/token_ids.npy has the id {largest}, beyond the {vocab_size} "
            "pieces of the store's vocabulary; copy the store again, or build it again"
        )
    return split


def open_array(
    directory: pathlib.Path, name: str, dtype: str, shape: tuple[int, ...]
) -> np.ndarray:
    """Map the array in a file of a store into memory.

    Raises:
      Refused: it is missing, damaged, outside of the store, or not of this dtype and shape.
    """
    path = directory / name
    if not path.exists():
        raise Refused(f"{path} is missing from the store; copy the store again")
    small_files.open_regular(path, directory).close()
    try:  # np.load would take archives and pickles too
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # its reader of headers raises what Python's parser does
        words = str(error).partition("\n")[0][:120]
        raise Refused(f"{path} is damaged or cut off ({words}); copy the store again") from error
    more_bytes = path.stat().st_size - array.offset - array.nbytes
    if more_bytes:
        raise Refused(f"{path} is {more_bytes:,} bytes too long; copy the store again")
    if array.dtype != np.dtype(dtype) or array.shape != shape:
        raise Refused(
            f"{path} is {array.dtype}{list(array.shape)}, but the manifest says "
            f"{dtype}{list(shape)}; they are from different builds: copy the store again"
        )
    return np.asarray(array)  # still mapped; slicing np.memmap costs more than what it slices


def _find_largest_id(token_ids: np.ndarray) -> int:
    """Find the largest id among at most _CHECKED_TOKENS, taken in blocks from start to end."""
    if len(token_ids) <= _CHECKED_TOKENS:
        return int(token_ids.max(initial=0))
    block = _CHECKED_TOKENS // _CHECKED_BLOCKS
    starts = np.linspace(0, len(token_ids) - block, _CHECKED_BLOCKS).astype(np.int64)
    return max(int(token_ids[start : start + block].max()) for start in starts)


def hash_file(path: pathlib.Path) -> str:
    """Compute the SHA-256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return hash_stream(file)


def hash_stream(file: BinaryIO, advance: Callable[[int], None] = lambda done_bytes: None) -> str:
    """Compute the SHA-256 of the rest of an open file; call `advance` with the bytes read."""
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        advance(len(block))
    return digest.hexdigest()


def compute_digest(arrays: dict[str, dict[str, Any]], vocabulary_sha256: str) -> str:
    """Compute the digest of a store from the SHA-256 of its arrays and vocabulary, a line each."""
    lines = [f"{name} {arrays[name]['sha256']}\n" for name in sorted(arrays)]
    text = "".join([*lines, f"vocabulary {vocabulary_sha256}\n"])
    return hashlib.sha256(text.encode()).hexdigest()


def list_checksums(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each array and of the vocabulary, by file name in the store."""
    checksums = {name: array["sha256"] for name, array in manifest["arrays"].items()}
    return checksums | {manifest["vocabulary"]["file"]: manifest["vocabulary"]["sha256"]}


def list_verified_files(
    directory: pathlib.Path, manifest: dict[str, Any]
) -> dict[pathlib.Path, str]:
    """Return the files whose SHA-256 is in the manifest: path -> SHA-256."""
    checksums = list_checksums(manifest).items()
    return {small_files.join_inside(directory, name): checksum for name, checksum in checksums}


def count_bytes(files: dict[pathlib.Path, str]) -> int:
    """Count the bytes of files; a missing file counts as 0."""
    return sum(path.stat().st_size for path in files if path.is_file())


def verify(
    directory: pathlib.Path,
    manifest: dict[str, Any],
    advance: Callable[[int], None],
    only: Container[pathlib.Path] | None = None,
) -> None:
    """Check every array and the vocabulary; call `advance` with the bytes that were read.

    With `only`, read only these files; another process reads the others.

    Raises:
      Refused: names the files that are missing or changed.
    """
    wrong = []
    for path, expected in list_verified_files(directory, manifest).items():
        if only is not None and path not in only:
            continue
        if not path.exists():
            wrong.append(f"{path} is missing")
            continue
        if path.suffix == ".npy":
            with small_files.open_regular(path, directory) as file:
                actual = hash_stream(file, advance)
        else:  # the vocabulary, whose size is bounded
            actual = hash_stream(io.BytesIO(small_files.read_bytes(path, directory)), advance)
        if actual != expected:
            wrong.append(
                f"{path} has the SHA-256 {actual[:12]}..., the manifest has {expected[:12]}..."
            )
    if wrong:
        raise Refused(f"{'; '.join(wrong)}: copy the store again, or build it again")
    digest = compute_digest(manifest["arrays"], manifest["vocabulary"]["sha256"])
    if digest != manifest["digest"]:
        raise Refused(
            f"{directory}/{MANIFEST} has a digest that does not belong to its files: it was "
            "edited by hand or is damaged; copy the store again, or build it again"
        )
