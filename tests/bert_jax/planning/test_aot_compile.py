"""What the cache of compiled steps keeps, and what it does not trust."""

import dataclasses
import gzip
import json
import os

import pytest

from bert_jax.planning import slices
from bert_jax.planning.aot_compile import Compiled, Memory, StepCache, TooLarge

STEP = Compiled(
    text="HloModule jit_step",
    memory=Memory(1, 2, 3, 4, 5),
    mesh={"slice": 1, "data": 4, "fsdp": 1, "model": 1},
    coordinates=[(0, 0), (0, 1), (1, 0), (1, 1)],
    parameters=110,
    matmul_dtype="bfloat16",
    compile_secs=71.5,
)


@pytest.mark.parametrize("step", [STEP, TooLarge(40, 16)])
def test_a_step_is_read_as_it_was_written(step, tmp_path):
    cache = StepCache(tmp_path / "new" / "folder")
    assert cache.read("a") is None
    cache.write("a", step)
    assert cache.read("a") == step and cache.read("b") is None


def test_a_key_is_of_the_program_the_slice_and_the_flags(tmp_path, monkeypatch):
    cache = StepCache(tmp_path)
    small, large = slices.find_slice("v5e:2x2"), slices.find_slice("v5e:2x4")
    keys = [cache.key("a", small), cache.key("b", small), cache.key("a", large)]
    keys.append(cache.key("a", slices.find_slice("v5e:2x2", 2)))
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--flag")
    keys.append(cache.key("a", small))
    assert len(set(keys)) == 5
    monkeypatch.delenv("LIBTPU_INIT_ARGS")
    assert cache.key("a", small) == keys[0]


def test_a_damaged_file_is_as_none(tmp_path, monkeypatch):
    cache = StepCache(tmp_path)
    fields = dataclasses.asdict(STEP)
    whole = gzip.compress(json.dumps(fields).encode())
    for content in (
        b"",
        b"no gzip",
        whole[:40],
        gzip.compress(b"[1]"),
        gzip.compress(b'"text"'),
        gzip.compress(json.dumps(fields | {"coordinates": [["x", 0]]}).encode()),
        gzip.compress(b'{"text": "x"}'),
        gzip.compress(json.dumps(fields | {"another": 1}).encode()),
    ):
        (tmp_path / "a.json.gz").write_bytes(content)
        assert cache.read("a") is None
    (tmp_path / "a.json.gz").write_bytes(whole)
    assert cache.read("a") == STEP
    monkeypatch.setattr("bert_jax.planning.aot_compile._MAX_CACHED_BYTES", 10)
    assert cache.read("a") is None


def test_the_newest_are_kept(tmp_path):
    cache = StepCache(tmp_path, most=3)
    for number, key in enumerate("abcde"):
        cache.write(key, STEP)
        os.utime(tmp_path / f"{key}.json.gz", (number, number))
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["c", "d", "e"]


def test_a_home_that_is_not_writable_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = StepCache(tmp_path / "file" / "below")
    cache.write("a", STEP)
    assert cache.read("a") is None
