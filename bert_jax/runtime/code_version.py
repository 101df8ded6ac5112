"""Identify the code of this process: a digest of its own files and the versions of packages."""

import hashlib
import importlib.metadata
import pathlib
import platform
import shutil
import subprocess
from typing import Any

import bert_jax
import data_pipeline

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
PACKAGES_OF_DATA = ("tensorflow", "tensorflow-cpu")  # alternatives: one of them is installed


def source_digest() -> str:
    """Return 12 hex digits of a SHA-256 over every Python file of bert_jax and data_pipeline."""
    digest = hashlib.sha256()
    for package in (bert_jax, data_pipeline):
        root = pathlib.Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def package_versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions of the given packages that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def code_version() -> str:
    """Return digest and versions on one line: `bert_jax 0.1.0 (0123456789ab), jax 0.10.2, ...`."""
    packages = [f"{name} {version}" for name, version in package_versions().items()]
    return ", ".join([f"bert_jax {bert_jax.__version__} ({source_digest()})", *packages])


def git_commit() -> str | None:
    """Return the commit of the git clone that holds this package, None outside a clone.

    -dirty is appended if files differ.
    """
    root = pathlib.Path(bert_jax.__path__[0]).parent
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    asked = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    asked += ["--exclude=*"]  # a tag's name would come before the commit
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def describe_code() -> dict[str, Any]:
    """Return digest, versions and commit as a dict, including the data pipeline's packages."""
    return {
        "bert_jax": bert_jax.__version__,
        "commit": git_commit(),
        "source_digest": source_digest(),
        "python": platform.python_version(),
        "packages": package_versions(PACKAGES + PACKAGES_OF_DATA),
    }
