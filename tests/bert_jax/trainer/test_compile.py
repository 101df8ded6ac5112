"""Compiled programs in the workdir, found again and bounded."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.trainer import compile
from tests.faults.bucket_server import NAME, fake_bucket

NAMES = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)
HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture(autouse=True)
def _as_before():
    """The settings of jax for the other tests."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def compiled(constant):
    """Compile as a new process would, for jax's own memory of the function is another's."""
    return jax.jit(lambda x: x * constant).lower(jnp.zeros(3)).compile()


def test_a_program_compiled_before_is_found_in_the_workdir(tmp_path):
    compiled(2.5)  # jax has looked for a folder by then, and found none
    compile.keep_in(tmp_path, is_writer=True)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "compiled")
    hits = []
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name == HIT))
    compiled(3.5)
    assert sum(hits) == 0
    assert len(list((tmp_path / "compiled").glob("jit_*-cache"))) == 1
    found = compiled(3.5)
    assert sum(hits) == 1
    assert found(jnp.ones(3)).tolist() == [3.5, 3.5, 3.5]


def test_the_oldest_programs_go_when_there_are_too_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(compile, "MAX_BYTES", 100)
    folder = tmp_path / "compiled"
    folder.mkdir()
    for age, name in enumerate(["new-cache", "newer than old-cache", "old-cache", "notes.txt"]):
        (folder / name).write_bytes(b"x" * 45)
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    compile.keep_in(tmp_path, is_writer=False)
    assert len(list(folder.iterdir())) == 4
    jax.config.update("jax_compilation_cache_dir", None)
    compile.keep_in(tmp_path, is_writer=True)
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["new-cache", "newer than old-cache", "notes.txt"]


def test_what_the_user_set_stays(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "shared"))
    compile.keep_in(tmp_path / "run", is_writer=True)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "shared")
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    compile.keep_in(tmp_path, is_writer=True)
    assert jax.config.jax_compilation_cache_dir is None


COMPILE = """
import pathlib, sys
import jax
from bert_jax.trainer import compile

events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
compile.keep_in(pathlib.Path(sys.argv[1]), is_writer=True)
print(jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: x * 3.5).lower(1.0).compile()
print("cache_hits" in events)
"""


@pytest.mark.slow
def test_programs_kept_in_a_bucket_are_found_by_a_machine_made_anew(tmp_path):
    place = f"gs://{NAME}/compiled"
    settings = {"JAX_COMPILATION_CACHE_DIR": place, "JAX_PLATFORMS": "cpu"}
    settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with fake_bucket() as bucket:
        for machine, is_there in (("old", False), ("new", True)):
            command = [sys.executable, "-c", COMPILE, str(tmp_path / machine)]
            environment = {**os.environ, **bucket.environment, **settings}
            ran = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            assert ran.stdout.split() == [place, str(is_there)], ran.stderr
