"""A place is tried before the run: what is refused there is said with its way out."""

import pathlib

import fsspec
import pytest

from bert_jax.bucket import Bucket
from bert_jax.storage_probe import check_bucket, check_folder


def test_a_folder_is_made_and_left_empty(tmp_path):
    check_folder(tmp_path / "deep" / "run")
    assert list((tmp_path / "deep" / "run").iterdir()) == []


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        check_folder(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("refused", "what"),
    [("write_bytes", "writing a file as a test"), ("unlink", "deleting a file")],
)
def test_what_a_folder_refuses_is_named(tmp_path, monkeypatch, refused, what):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, refused, refuse)
    with pytest.raises(OSError, match=f"^{tmp_path}: {what} failed, this user may not write"):
        check_folder(tmp_path)


def test_a_disk_that_gives_back_other_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pathlib.Path, "read_bytes", lambda self: b"zeros")
    with pytest.raises(OSError, match="a file that was written reads otherwise"):
        check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_is_left_as_it_was():
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/runs/mine/config.json", b"{}")
    check_bucket(Bucket("memory://runs/mine"))
    assert memory.find("/runs/mine") == ["/runs/mine/config.json"]
    memory.rm("/runs", recursive=True)
