"""Share fixtures of the pipeline's tests: a bucket in memory, fewer trial walks."""

from collections.abc import Iterator
from unittest import mock

import fsspec
import pytest

from data_pipeline.sampling import walks


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """Yield a file system in memory with a folder /bucket; remove its files after the test."""
    files = fsspec.filesystem("memory")
    files.mkdirs("/bucket", exist_ok=True)
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


ALL_TRIALS = {name: getattr(walks, name) for name in ("_WALKS", "_ROUNDS")}


@pytest.fixture(scope="module")
def few_trial_walks() -> Iterator[None]:
    """Estimate the share of random pairs by two trial walks instead of 48.

    Not for stores that other modules open: the share is kept in them.
    """
    with mock.patch.multiple(walks, _WALKS=1, _ROUNDS=2):
        yield


@pytest.fixture
def all_trial_walks(few_trial_walks) -> Iterator[None]:
    """Restore a run's number of trial walks in a module with few_trial_walks."""
    with mock.patch.multiple(walks, **ALL_TRIALS):
        yield
