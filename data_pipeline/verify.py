"""Whether the files of a store are those that were built: each against its SHA-256."""

import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

from data_pipeline import small_files
from data_pipeline.store_writing import store_digest

_BLOCK_BYTES = 1 << 22


def verified_files(directory: pathlib.Path, manifest: dict[str, Any]) -> dict[pathlib.Path, str]:
    """The files whose SHA-256 the manifest has, and what it is.

    Raises:
      ValueError: the manifest does not say.
    """
    try:
        vocabulary = manifest["vocabulary"]
        names = {name: array["sha256"] for name, array in manifest["arrays"].items()}
        names[vocabulary["file"]] = vocabulary["sha256"]
        return {small_files.path_inside(directory, name): of for name, of in names.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{directory}/manifest.json is damaged (no {error}); copy the store again, or build it "
            "again"
        ) from error


def size_bytes(files: dict[pathlib.Path, str]) -> int:
    """How much there is to read; a file that is missing counts nothing."""
    return sum(path.stat().st_size for path in files if path.is_file())


def verify(
    directory: pathlib.Path, manifest: dict[str, Any], advance: Callable[[int], None]
) -> None:
    """Read every array and the vocabulary; `advance` is told the bytes as they are read.

    Raises:
      ValueError: names the files that are missing or changed.
    """
    wrong = []
    for path, expected in verified_files(directory, manifest).items():
        if not path.exists():
            wrong.append(f"{path} is missing")
        elif (found := _sha256(path, directory, advance)) != expected:
            wrong.append(
                f"{path} has the SHA-256 {found[:12]}..., the manifest says {expected[:12]}..."
            )
    if wrong:
        raise ValueError(f"{'; '.join(wrong)}: copy the store again, or build it again")
    if store_digest(manifest["arrays"], manifest["vocabulary"]["sha256"]) != manifest.get("digest"):
        raise ValueError(
            f"{directory}/manifest.json has a digest that does not belong to its files: it was "
            "changed by hand or is damaged; copy the store again, or build it again"
        )


def _sha256(path: pathlib.Path, root: pathlib.Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    if path.suffix != ".npy":  # the vocabulary, which is read whole
        data = small_files.read_bytes(path, root)
        advance(len(data))
        return hashlib.sha256(data).hexdigest()
    with small_files.open_regular(path, root) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()
