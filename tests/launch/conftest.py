"""Fixtures of the tests of launch/: cluster.env, a clone, a pod on a stand-in for Google Cloud."""

import pytest

from tests.launch.pods import quick_pod
from tests.launch.scripts import make_clone, write_cluster
from tests.launch.tpu_api import TpuApi


@pytest.fixture(autouse=True)
def quick_python(monkeypatch):
    """Stand in for the Python that resolves the config, which takes seconds; it accepts all."""
    monkeypatch.setenv("BERT_JAX_PYTHON", "true")


@pytest.fixture
def cluster(tmp_path):
    """A function that writes a cluster.env, complete but for what it is given."""
    return lambda **changed: write_cluster(tmp_path / "cluster.env", **changed)


@pytest.fixture
def clone(tmp_path):
    return make_clone(tmp_path / "clone")


@pytest.fixture
def api():
    """Google Cloud's API, with TPU VMs of two workers."""
    return TpuApi(workers=2)


@pytest.fixture
def pod(tmp_path, api):
    with quick_pod(tmp_path, api) as pod:
        yield pod
