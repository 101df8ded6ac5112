"""Small files: what is read, and every way in which one can be damaged, as one sentence."""

import json
import os
import time

import pytest

from data_pipeline.io import small_files
from data_pipeline.io.small_files import DamagedFile


def test_brackets_in_strings_do_not_count_as_depth(tmp_path):
    text = {"a": "[" * 1000, 'b"\\': ["\\", '"[[[['] * 100}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(text))
    assert small_files.read_object(path) == text


def test_the_depth_of_a_line_with_few_brackets_is_not_measured(monkeypatch):
    """A metrics.jsonl may have a million such lines."""
    measured: list[bytes] = []
    monkeypatch.setattr(small_files, "measure_nesting", lambda data: measured.append(data) or 65)
    assert small_files.parse_json(b'{"step": [1, {"a": 2}]}', "a line") == {"step": [1, {"a": 2}]}
    assert not measured
    for brackets in (b"[" * 65 + b"]" * 65, b'{"a":' * 65 + b"1" + b"}" * 65):
        with pytest.raises(DamagedFile, match="nested deeper than 64"):
            small_files.parse_json(brackets, "a line")
    assert len(measured) == 2


def test_a_string_that_does_not_close_takes_linear_time():
    started = time.process_time()
    with pytest.raises(DamagedFile, match="x is not JSON"):
        small_files.parse_json(b'{"a": "' + b'\\"' * 200_000, "x")
    assert time.process_time() - started < 5  # its square takes minutes


def test_what_is_no_regular_file_or_too_large_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "/dev/zero"):
        with pytest.raises((DamagedFile, IsADirectoryError)):
            small_files.read_bytes(tmp_path / name)
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(10 << 40)  # 10 TiB of nothing
    with pytest.raises(DamagedFile, match="larger than"):
        small_files.read_object(path)


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "/etc/passwd", "a/../../secret", "link", "", 5, None),
        *("a" * 256, "é" * 128, "a/" * 1500, "\ud800", "a\0b"),
    ],
)
def test_a_name_that_leaves_its_folder_is_refused(name, tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "secret").write_text("{}")
    (root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(DamagedFile) as raised:
        small_files.join_inside(root, name)
    assert len(str(raised.value)) < 300


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_read(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "secret").write_text("{}")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "file").write_text("{}")
    (root / "in").symlink_to("file")
    with pytest.raises(DamagedFile, match="link out of"):
        small_files.read_object(root / "out", root)
    assert small_files.read_object(root / "in", root) == {}
    # the folder itself may be reached through a link
    (tmp_path / "alias").symlink_to(root)
    assert small_files.read_object(tmp_path / "alias" / "file", tmp_path / "alias") == {}


def test_a_field_may_be_absent_where_it_has_a_default():
    assert small_files.field({}, "key", int, "x.json", default=3) == 3
    assert small_files.field({"key": 4}, "key", float, "x.json") == 4
    with pytest.raises(DamagedFile, match="no key 'key'"):
        small_files.field({}, "key", int, "x.json")


def test_what_stands_in_for_a_file_is_refused_by_its_name(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:74bf\nsize 9\n")
    for read in (small_files.read_bytes, small_files.read_object, small_files.open_regular):
        with pytest.raises(small_files.DamagedFile, match=r"model\.safetensors is .*git-lfs"):
            read(path)
    with small_files.open_regular(path, may_stand_in=True) as file:
        assert file.read() == path.read_bytes()
