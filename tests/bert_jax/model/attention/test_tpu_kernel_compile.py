"""The attention kernel compiles for TPUs, without a TPU; all sizes: benchmarks/kernel_price.py."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra [plan]: pip install libtpu"
)
@pytest.mark.parametrize(
    ("topology", "kernel", "sizes"),
    [
        ("v4:2x2x1", "attention", ["128", "2", "64", "0.1"]),
        ("v5e:2x2", "flash", ["1024", "2", "64", "0", "flash", "128"]),
    ],
)
def test_forward_and_backward_compile_under_their_names(topology, kernel, sizes):
    command = [sys.executable, "-m", "benchmarks.compile_kernel", topology, *sizes]
    settings = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | settings | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (fact,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    backward, forward = sorted(fact["kernels"], key=lambda name: f"{kernel}_forward" in name)
    assert fact["topology"] == topology
    assert f"{kernel}_backward" in backward and f"{kernel}_forward" in forward
