"""The real step compiles for a TPU slice, without a TPU."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TWO_LAYERS = 14_175_744 + 512 * 768 + 2 * 768 + 1536 + 30_592 + 30_592 * 768  # at least so many


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra [plan]: pip install libtpu"
)
def test_the_step_compiles_for_sixteen_v5e_chips():
    done = subprocess.run(
        [sys.executable, "-m", "tests.bert_jax.compile_for_tpu", "v5e:4x4", "dp"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["devices"] == 16
    # Parameters and two moments in float32 on every chip, and all of it given back in place.
    assert facts["argument_bytes"] > 3 * 4 * TWO_LAYERS
    assert facts["alias_bytes"] > 0.99 * facts["argument_bytes"]
    assert facts["has_collectives"]
    assert facts["bfloat16_matmuls"]
