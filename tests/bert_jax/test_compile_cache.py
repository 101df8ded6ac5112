"""Compiled programs in the workdir: found again, bounded, and no others' folder touched."""

import os

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax import compile_cache

NAMES = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture(autouse=True)
def _as_before():
    """The settings of jax for the other tests."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    at_least = jax.config.jax_persistent_cache_min_compile_time_secs
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", at_least)
    compilation_cache.reset_cache()


def compiled(constant):
    """Compile as a new process would, for jax's own memory of the function is another's."""
    return jax.jit(lambda x: x * constant).lower(jnp.zeros(3)).compile()


def test_a_program_compiled_before_is_found_in_the_workdir(tmp_path):
    compiled(2.5)  # jax has looked for a folder by then, and found none
    assert compile_cache.keep_in(tmp_path, is_writer=True) == str(tmp_path / "compiled")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    hits = []
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name == HIT))
    compiled(3.5)
    assert sum(hits) == 0
    assert len(list((tmp_path / "compiled").glob("jit_*-cache"))) == 1
    found = compiled(3.5)
    assert sum(hits) == 1
    assert found(jnp.ones(3)).tolist() == [3.5, 3.5, 3.5]


def test_the_oldest_programs_go_when_there_are_too_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_cache, "MOST_BYTES", 100)
    folder = tmp_path / "compiled"
    folder.mkdir()
    for age, name in enumerate(["new-cache", "newer than old-cache", "old-cache", "notes.txt"]):
        (folder / name).write_bytes(b"x" * 45)
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    compile_cache.keep_in(tmp_path, is_writer=False)
    assert len(list(folder.iterdir())) == 4
    jax.config.update("jax_compilation_cache_dir", None)
    compile_cache.keep_in(tmp_path, is_writer=True)
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["new-cache", "newer than old-cache", "notes.txt"]


def test_a_folder_that_was_chosen_stays(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "shared"))
    assert compile_cache.keep_in(tmp_path / "run", is_writer=True) == str(tmp_path / "shared")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "shared")


def test_a_cache_that_was_turned_off_stays_off(tmp_path):
    jax.config.update("jax_enable_compilation_cache", False)
    assert compile_cache.keep_in(tmp_path, is_writer=True) == ""
    assert jax.config.jax_compilation_cache_dir is None
