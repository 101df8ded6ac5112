"""The step with the GPU attention kernel compiles for GPUs, without a GPU."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


@pytest.mark.slow
@pytest.mark.skipif(
    jax.__version_info__ < (0, 12) or not any(map(importlib.util.find_spec, PLUGINS)),
    reason="needs jax 0.12 and its CUDA plugin: pip install 'jax[cuda12]'",
)
@pytest.mark.parametrize(("card", "shared_kib"), [("A10", 99), ("H100", 227)])
def test_the_step_compiles_and_its_kernels_fit_into_shared_memory(card, shared_kib):
    command = [sys.executable, "-m", "benchmarks.compile_gpu_step", card, "2", "128", "8", "kernel"]
    done = subprocess.run(
        [*command, "1"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["kernels"] == {"gpu_attention_forward": 1, "gpu_attention_backward": 1}
    assert all(size <= shared_kib * 1024 for size in facts["shared_bytes"].values())
    assert facts["collectives"]["reduce-scatter"] > 0
    assert "all-to-all" not in facts["collectives"]
