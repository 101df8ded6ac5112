"""The file layer: local paths, fsspec's addresses, and what keeps a file from being read."""

import gzip
import io
import os
import re
import subprocess
import sys

import pytest

from data_pipeline.io.files import StoredFile, find_files, open_file


def read(address: str) -> bytes:
    with open_file(address) as file:
        return file.read()


def test_globs_of_an_address_match_as_in_a_folder(memory, tmp_path, monkeypatch):
    names = ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", "e.json", ".f.txt", ".g/h.txt")
    for name in names:
        memory.pipe(f"/corpus/{name}", name.encode())
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    shown = ("*.txt", "*/*.txt", "**/*.txt", "a.txt", "[ab].txt", "?.json", "*", "sub")
    for pattern in (*shown, ".*", ".f.txt", ".g/*"):
        local = find_files(f"corpus/{pattern}")
        remote = find_files(f"memory://corpus/{pattern}")
        assert [f"memory://{file.address}" for file in local] == [
            file.address.replace(":///", "://") for file in remote
        ]
        assert [file.is_directory for file in local] == [file.is_directory for file in remote]
        for file, other in zip(local, remote, strict=True):
            if not file.is_directory:
                assert file.stored_bytes == other.stored_bytes == len(read(other.address))
                assert read(file.address) == read(other.address)


def test_links_in_circles_are_followed_once(tmp_path, monkeypatch):
    """Python's own glob enters them in every order, 40 deep."""
    for name in ("a.txt", "b/b.txt", "b/[c]/c.txt", "b/[c]/.d/d.txt"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_text(name)
    for link in ("up", "again", "b/up", "b/[c]/up"):
        (tmp_path / "x" / link).symlink_to(tmp_path / "x")
    (tmp_path / "x/linked").symlink_to(tmp_path / "y")
    (tmp_path / "y").mkdir()
    (tmp_path / "y/y.txt").write_text("y")
    texts = ["a.txt", "b/[c]/c.txt", "b/b.txt", "linked/y.txt"]
    monkeypatch.chdir(tmp_path / "x")
    for pattern in ("**/*.txt", "**/**/*.txt", "**", f"{tmp_path}/x/**/*.t*", "./**/*.txt"):
        head = pattern.partition("**")[0]
        files = [file.address for file in find_files(pattern) if not file.is_directory]
        assert files == [head + name for name in texts]
    assert [file.address for file in find_files("../x/**/b/*.txt")] == ["../x/b/b.txt"]


def test_a_bucket_is_asked_for_large_pieces_whatever_the_reader_asks_for(memory, monkeypatch):
    data = bytes(range(256)) * 1000
    memory.pipe("/corpus/a.gz", gzip.compress(data, compresslevel=0))
    asked: list[int] = []

    class Counting(io.BytesIO):
        def readinto(self, buffer) -> int:
            asked.append(len(buffer))
            return super().readinto(buffer)

    packed = memory.cat_file("/corpus/a.gz")
    monkeypatch.setattr(type(memory), "open", lambda *_, **__: Counting(packed))
    with open_file("memory://corpus/a.gz", 100_000) as file:
        assert gzip.GzipFile(fileobj=file).read() == data
    # From Python 3.12 on the rest of a buffer at the end of the file is asked for once more.
    assert sum(size < 100_000 for size in asked) <= 1 and len(asked) < 10


def test_a_home_folder_and_a_file_address_are_understood(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_files("~/*.txt") == [StoredFile(f"{tmp_path}/a.txt", 4, is_directory=False)]
    assert find_files(f"file://{tmp_path}/*.txt") == [
        StoredFile(f"file://{tmp_path}/a.txt", 4, is_directory=False)
    ]


@pytest.mark.parametrize("address", ["https://me:open@h/a.txt", "zip://a::https://:open@h/*.zip"])
def test_an_address_with_a_password_is_refused_without_it(address):
    with pytest.raises(ValueError, match=r"has a password in it.* ~/\.config/fsspec") as error:
        find_files(address)
    assert "open" not in str(error.value)


def test_a_missing_driver_is_named_with_the_command_that_installs_it():
    """In a process of its own: fsspec keeps the drivers that it has once imported."""
    source = """
import sys
sys.modules |= {"gcsfs": None, "aiohttp": None}
from data_pipeline.io.files import find_files
for protocol in ("gs", "https", "nowhere"):
    try:
        find_files(protocol + "://b/a.txt")
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    of_google, of_the_web, unknown = done.stdout.splitlines()
    assert re.match(r"gs://b/a\.txt needs .* pip install .*\[gcs\]'", of_google)
    assert re.match(r"https://b/a\.txt needs .*: install it \(.*aiohttp", of_the_web)
    assert re.match(r"nowhere://b/a\.txt .* is not a file system that fsspec", unknown)


def test_a_file_that_went_after_it_was_listed_and_a_link_to_nothing_are_named(memory, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    memory.pipe("/corpus/a.txt", b"text")
    link = tmp_path / "link_to_a.txt"
    link.symlink_to(tmp_path / "gone.txt")
    listed = [find_files(name)[0] for name in (str(path), str(link), "memory://corpus/*")]
    path.unlink()
    memory.rm("/corpus/a.txt")
    gone = r"a\.txt was listed and is not there any"
    nowhere = r"a\.txt is a link to .*gone\.txt, which is not there; remove the link"
    for file, words in zip(listed, (gone, nowhere, gone), strict=True):
        with pytest.raises(ValueError, match=words):
            read(file.address)


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)  # whom permissions concern
    try:
        with pytest.raises(PermissionError, match=r"a\.txt: reading failed, .*; change its"):
            read(str(path))
    finally:
        if is_root:
            os.seteuid(0)


class DriverError(Exception):
    """Of a driver that has errors of its own."""


def test_errors_of_a_driver_become_one_sentence(memory, monkeypatch):
    def refuse(*_, **__):
        raise DriverError("no credentials")

    memory.pipe("/corpus/a.txt", b"text")
    sentence = r"^memory://.*ing failed: DriverError no credentials$"
    monkeypatch.setattr(type(memory), "_open", refuse)
    with pytest.raises(OSError, match=sentence):
        read("memory://corpus/a.txt")
    monkeypatch.setattr(type(memory), "glob", refuse)
    with pytest.raises(OSError, match=sentence):
        find_files("memory://corpus/*")
