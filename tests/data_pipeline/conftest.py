"""What tests of the pipeline share: a bucket in memory, fewer trial walks."""

from collections.abc import Iterator
from unittest import mock

import fsspec
import pytest

from data_pipeline.sampling import walks


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """The file system in memory, whose /bucket is there; its files go with the test."""
    files = fsspec.filesystem("memory")
    files.mkdirs("/bucket", exist_ok=True)
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


ALL_TRIALS = {name: getattr(walks, name) for name in ("_WALKS", "_ROUNDS")}


@pytest.fixture(scope="module")
def few_trial_walks() -> Iterator[None]:
    """Find the share of random pairs by two walks instead of 48.

    Not for stores that other modules open: the share is kept in them.
    """
    with mock.patch.multiple(walks, _WALKS=1, _ROUNDS=2):
        yield


@pytest.fixture
def all_trial_walks(few_trial_walks) -> Iterator[None]:
    """As many as in a run, in a module that has few."""
    with mock.patch.multiple(walks, **ALL_TRIALS):
        yield
