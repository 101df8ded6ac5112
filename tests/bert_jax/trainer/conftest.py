"""Start a run that has saved its first weights and taken no step."""

import pytest

from tests.bert_jax.small_runs import begun, prepare, small_config


@pytest.fixture(scope="session")
def first_config(tiny_store):
    return small_config(tiny_store)


@pytest.fixture(scope="session")
def first_saved(first_config, tmp_path_factory):
    """Return the workdir of that run, without metrics; tests must copy it."""
    workdir = tmp_path_factory.mktemp("first") / "run"
    assert begun(prepare(first_config, workdir)).step == 0
    return workdir
