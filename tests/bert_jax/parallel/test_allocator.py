"""Memory that glibc keeps between the steps of a CPU."""

import pathlib
import subprocess
import sys

import pytest

from bert_jax.parallel import allocator
from tests.faults.runs import ROOT, environment

# Prints the page faults of ten steps, each of which allocates some 60 MB, after six more.
_STEPS = """
import resource, sys
from bert_jax.parallel import allocator
if sys.argv[1] == "keep" and not allocator.keep_freed_memory():
    sys.exit("nothing was set")
import jax
from jax import numpy as jnp
def loss(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return x.sum()
step = jax.jit(jax.grad(loss))
w, x = jnp.ones((256, 256)), jnp.ones((8192, 256))
faults = []
for _ in range(17):
    step(w, x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[-11])
"""


def _count_faults(mode: str) -> int:
    command = [sys.executable, "-c", _STEPS, mode]
    env = {key: text for key, text in environment().items() if not key.startswith("MALLOC_")}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_steps_reuse_the_memory_of_the_last_one() -> None:
    assert _count_faults("keep") < 0.2 * _count_faults("default")


@pytest.mark.parametrize("name", ["accel0", "vfio/0", "nvidia0", "kfd", "dxg"])
def test_hosts_of_accelerators_keep_glibcs_own_settings(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert not allocator.keep_freed_memory(tmp_path)


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not allocator.keep_freed_memory()
