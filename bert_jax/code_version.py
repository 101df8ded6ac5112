"""Which code this process runs: the digest of our own, and the versions of what computes."""

import hashlib
import importlib.metadata
import pathlib

import bert_jax
import data_pipeline

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")


def source_digest() -> str:
    """The first 12 digits of a SHA-256 over every Python file of bert_jax and data_pipeline."""
    digest = hashlib.sha256()
    for package in (bert_jax, data_pipeline):
        root = pathlib.Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def package_versions() -> dict[str, str]:
    """The version of each package of PACKAGES that is installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def code_version() -> str:
    """All of it on one line, as `bert_jax 0.1.0 (0123456789ab), jax 0.10.2, ...`."""
    packages = [f"{name} {version}" for name, version in package_versions().items()]
    return ", ".join([f"bert_jax {bert_jax.__version__} ({source_digest()})", *packages])
