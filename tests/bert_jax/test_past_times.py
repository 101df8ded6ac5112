"""How long a compile took the last time: kept by its key, and no reason to fail."""

import json

import pytest

from bert_jax import past_times


def test_the_last_time_of_each_key_is_kept(tmp_path):
    path = tmp_path / "new" / "secs.json"
    a, b = past_times.key_of([{"x": 1, "y": 2}]), past_times.key_of([{"x": 1, "y": 3}])
    assert past_times.key_of([{"y": 2, "x": 1}]) == a != b
    assert past_times.secs_of(a, path) is None
    past_times.remember(a, 12.34, path)
    past_times.remember(b, 1, path)
    past_times.remember(a, 56.78, path)
    assert (past_times.secs_of(a, path), past_times.secs_of(b, path)) == (56.8, 1.0)


def test_the_oldest_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(past_times, "_MOST", 2)
    path = tmp_path / "secs.json"
    for key in ("a", "b", "a", "c"):
        past_times.remember(key, 1, path)
    assert list(json.loads(path.read_text())) == ["a", "c"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"key": "soon"}', b'{"key": -1}', b'{"key": NaN}', b"\xff\0", b"[" * 9999],
    ids=["empty", "cut", "a list", "words", "below 0", "nan", "bytes", "nested"],
)
def test_a_damaged_file_knows_nothing_and_is_written_anew(tmp_path, damage):
    path = tmp_path / "secs.json"
    path.write_bytes(damage)
    assert past_times.secs_of("key", path) is None
    past_times.remember("key", 5, path)
    assert past_times.secs_of("key", path) == 5


def test_a_home_that_cannot_be_written_or_is_none_is_left_alone(tmp_path):
    (tmp_path / "file").touch()
    past_times.remember("key", 5, tmp_path / "file" / "secs.json")
    (tmp_path / "secs.json").mkdir()
    past_times.remember("key", 5, tmp_path / "secs.json")
    assert past_times.secs_of("key", tmp_path / "secs.json") is None
