"""Settings of every test: eight CPU devices, key reuse an error, real data where it lies beside us."""

import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile far more than they compute.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_debug_key_reuse", True)

SHARED_DATA = pathlib.Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture
def shared_data() -> pathlib.Path:
    """The folder of real texts and golden outputs, or a skip that names it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the texts and golden outputs of ../shared/data")
    return SHARED_DATA
