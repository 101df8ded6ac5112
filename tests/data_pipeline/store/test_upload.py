"""A store built for a bucket: there whole and checked, or not there; nothing else is touched."""

import json
import pathlib

import pytest

from data_pipeline import build
from data_pipeline.build import main
from data_pipeline.io.atomic import WORKING
from data_pipeline.store import open_store, upload
from data_pipeline.store.cache import fetch_store

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "line", ".", *"0123456789"]
ADDRESS = "memory://bucket/stores/mine"


@pytest.fixture
def argv(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"Line {i}.\nLine." for i in range(40)))
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "scratch").mkdir()
    return [
        f"--input={tmp_path}/corpus.txt",
        f"--vocab={tmp_path}/vocab.txt",
        f"--scratch={tmp_path}/scratch",
        f"--output={ADDRESS}",
        "--workers=1",
        "--holdout=0.2",
    ]


def objects(memory) -> dict[str, bytes]:
    return {name: memory.cat_file(name) for name in memory.find("/bucket")}


def test_the_store_in_the_bucket_is_the_one_that_a_folder_would_hold(
    memory, argv, tmp_path, capsys
):
    assert main(argv) == 0
    screen = capsys.readouterr().out
    assert f"--config.data.store={ADDRESS} --config.data.data_cache=" in " ".join(screen.split())
    assert main([*argv[:2], f"--output={tmp_path}/local", *argv[4:]]) == 0
    local = tmp_path / "local"
    assert objects(memory) == {
        f"/bucket/stores/mine/{path.relative_to(local)}": path.read_bytes()
        for path in local.rglob("*")
        if path.is_file()
    }
    copy = fetch_store(ADDRESS, str(tmp_path / "cache"))
    assert open_store(copy).digest == open_store(local).digest
    assert not list((tmp_path / "scratch").iterdir())


def test_a_finished_store_is_replaced_only_when_told_to(memory, argv, capsys, tmp_path):
    assert main(argv) == 0
    before = objects(memory)
    assert main(argv) == 2
    assert "holds a finished store; give another folder, or replace it" in capsys.readouterr().err
    assert objects(memory) == before
    for name in ("vocab.model", "walks/digest.json", "references/digest.json"):
        memory.pipe_file(f"/bucket/stores/mine/{name}", b"of a store before")
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"Line {i}." for i in range(50)))
    assert main([*argv, "--overwrite=true"]) == 0
    after = objects(memory)
    assert after.keys() == before.keys()
    manifest = "/bucket/stores/mine/manifest.json"
    assert json.loads(after[manifest])["digest"] != json.loads(before[manifest])["digest"]


@pytest.mark.parametrize(
    "name, data, sentence",
    [
        ("photo.jpg", b"x", "which holds photo.jpg, which is not part of a store"),
        ("train/data", b"x", "holds train, which is not part of a store with a manifest.json"),
        ("manifest.json", b"{}", "whose manifest.json is not a store's"),
        ("manifest.json", b"[" * 100_000, "whose manifest.json is not a store's"),
        ("manifest.json", b"\xff\0", "whose manifest.json is not a store's"),
    ],
)
def test_what_somebody_else_has_there_is_left_alone(memory, argv, capsys, name, data, sentence):
    memory.pipe_file(f"/bucket/stores/mine/{name}", data)
    assert main([*argv, "--overwrite=true"]) == 2
    assert sentence in capsys.readouterr().err
    assert objects(memory) == {f"/bucket/stores/mine/{name}": data}


def test_a_folder_that_an_object_marks_is_empty(memory, argv, monkeypatch):
    """gcsfs lists such a folder, which Google's console makes, as an entry of its own."""
    memory.mkdirs("/bucket/stores/mine")
    list_folder = type(memory).ls

    def list_with_marker(self, path, detail=True, **options):
        entries = list_folder(self, path, detail=detail, **options)
        return entries if detail else [path, *entries]

    monkeypatch.setattr(type(memory), "ls", list_with_marker)
    assert main(argv) == 0


def test_a_copy_that_was_killed_is_begun_again(memory, argv):
    for name in (WORKING, "train/token_ids.npy", "vocab.model"):
        memory.pipe_file(f"/bucket/stores/mine/{name}", b"half")
    assert main(argv) == 0
    names = {name.removeprefix("/bucket/stores/mine/") for name in objects(memory)}
    assert "manifest.json" in names and not {WORKING, "vocab.model"} & names


def test_a_copy_that_ctrl_c_stopped_is_begun_again_even_after_a_build_that_failed(
    memory, argv, tmp_path, monkeypatch
):
    put = type(memory).put_file

    def stop(self, local, remote, **more):
        if remote.endswith("train/token_ids.npy"):
            raise KeyboardInterrupt
        put(self, local, remote, **more)

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "put_file", stop)
        assert main(argv) == 130
    text = (tmp_path / "corpus.txt").read_bytes()
    (tmp_path / "corpus.txt").write_bytes(b"\xff")
    assert main(argv) == 2
    (tmp_path / "corpus.txt").write_bytes(text)
    assert main(argv) == 0
    assert f"/bucket/stores/mine/{WORKING}" not in objects(memory)


def test_bytes_that_arrive_changed_are_found_and_the_store_here_is_named(
    memory, argv, capsys, monkeypatch, tmp_path
):
    put = type(memory).put_file

    def damage(self, local, remote, **more):
        put(self, local, remote, **more)
        if remote.endswith("train/token_ids.npy"):
            self.pipe_file(remote, b"changed")

    monkeypatch.setattr(type(memory), "put_file", damage)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert f"{ADDRESS}/train/token_ids.npy is not what was written there" in error
    assert "/bucket/stores/mine/manifest.json" not in objects(memory)
    (kept,) = (tmp_path / "scratch").glob("*/mine")
    assert str(kept) in error and open_store(kept)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionResetError("reset"), 1),
        (PermissionError("403 Forbidden"), 2),
        (ValueError(), None),
    ],
)
def test_a_copy_that_may_go_well_again_ends_with_1(
    memory, argv, capsys, monkeypatch, tmp_path, error, code
):
    def fail(self, local, remote, **more):
        raise error

    monkeypatch.setattr(type(memory), "put_file", fail)
    if code is None:  # a bug
        with pytest.raises(ValueError) as failed:
            main(argv)
        said = "".join(failed.value.__notes__)
    else:
        assert main(argv) == code
        said = capsys.readouterr().err
    (kept,) = (tmp_path / "scratch").glob("*/mine")
    assert f"the store is complete in {kept}" in said and open_store(kept)


@pytest.mark.slow
def test_a_build_that_fails_leaves_nothing_in_the_bucket_or_the_scratch_folder(
    memory, argv, tmp_path
):
    (tmp_path / "corpus.txt").write_bytes(b"one\n\ntwo\n\n" * 200_000 + b"\xff")
    assert main(argv) == 2
    assert objects(memory) == {} and not list((tmp_path / "scratch").iterdir())


def test_too_little_room_for_the_scratch_folder_is_said_first(memory, argv, capsys, monkeypatch):
    usage = upload.shutil.disk_usage(pathlib.Path("/"))
    monkeypatch.setattr(upload.shutil, "disk_usage", lambda path: usage._replace(free=3))
    monkeypatch.setattr(build, "encode_corpus", lambda *given: pytest.fail("encoded"))
    assert main(argv) == 2
    assert "name a folder on a larger disk with --scratch" in capsys.readouterr().err
    assert objects(memory) == {}
