"""Memory that glibc keeps between the steps of a CPU."""

import ctypes
import pathlib
import subprocess
import sys

import pytest

from bert_jax.runtime import malloc
from tests.faults.runs import ROOT, environment

# Prints the page faults of ten steps, each of which allocates some 60 MB, after six more.
_STEPS = """
import resource, sys
from bert_jax.parallel import allocator
if sys.argv[1] == "keep" and not malloc.keep_freed_memory():
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
steps = [after - before for before, after in zip(faults, faults[1:])]
print(sorted(steps[-11:])[5])  # the median: on a busy machine a new thread may still take memory
"""


def _count_faults(mode: str) -> int:
    command = [sys.executable, "-c", _STEPS, mode]
    env = {key: text for key, text in environment().items() if not key.startswith("MALLOC_")}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_steps_reuse_the_memory_of_the_last_one() -> None:
    assert _count_faults("keep") < 0.2 * _count_faults("default")


@pytest.mark.parametrize("name", ["accel0", "vfio/0", "nvidia0"])
def test_the_device_file_of_an_accelerator_is_found(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "dev" / name
    path.parent.mkdir(parents=True)
    path.touch()
    assert malloc.find_accelerators(tmp_path) == [path]


@pytest.mark.parametrize("name", ["accel/accel0", "vfio/vfio", "nvidiactl"])
def test_device_files_that_other_hosts_have_too_are_no_accelerator(
    name: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "dev" / name
    path.parent.mkdir(parents=True)
    path.touch()
    assert malloc.find_accelerators(tmp_path) == []


_TPU = [pathlib.Path("/dev/accel0")]


@pytest.mark.parametrize(
    ("environ", "accelerators", "keeps"),
    [
        ({}, [], True),
        ({}, _TPU, False),
        ({"JAX_PLATFORMS": "cpu"}, _TPU, True),
        ({"JAX_PLATFORMS": "tpu,cpu"}, _TPU, False),
        ({"MALLOC_ARENA_MAX": "4"}, [], False),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, [], False),
        ({"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2"}, [], True),
    ],
)
def test_memory_is_kept_on_cpus_where_the_user_set_nothing(
    environ: dict[str, str], accelerators: list[pathlib.Path], keeps: bool
) -> None:
    assert malloc.should_keep(environ, accelerators) == keeps
