"""The mesh of the tests of the model: one device, unless a test makes another."""

import jax
import pytest

from bert_jax.config import MeshConfig
from bert_jax.parallel import mesh


@pytest.fixture(autouse=True)
def one_device():
    jax.set_mesh(mesh.make_mesh(MeshConfig(), jax.devices()[:1]))
