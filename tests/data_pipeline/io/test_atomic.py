import contextlib
import os
from unittest import mock

import pytest

from data_pipeline.io import atomic
from data_pipeline.io.atomic import (
    WORKING,
    Destination,
    check_new_file,
    keep_json,
    new_file,
    new_folder,
    write_file,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_together_and_the_last_one_last(tmp_path, monkeypatch):
    moved = []
    rename = type(tmp_path).rename
    monkeypatch.setattr(
        type(tmp_path), "rename", lambda path, to: (moved.append(path.name), rename(path, to))
    )
    with new_folder(Destination(tmp_path / "out", "a_manifest")) as folder:
        for name in ("b", "a_manifest", "c"):
            (folder / name).touch()
        assert names(tmp_path / "out") == [WORKING]
    assert names(tmp_path / "out") == ["a_manifest", "b", "c"]
    assert len(moved) == 3 and moved[-1] == "a_manifest"


@pytest.mark.parametrize("moves", range(3))
def test_after_a_kill_between_the_moves_the_same_work_again_is_whole(tmp_path, monkeypatch, moves):
    (tmp_path / "mine").touch()
    rename = type(tmp_path).rename
    done = []

    def killed(path, to):
        if len(done) == moves:
            raise OSError("killed")
        done.append(rename(path, to))

    def work():
        with new_folder(Destination(tmp_path / "out", "a")) as folder:
            for name in "abc":
                (folder / name).mkdir()

    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(type(tmp_path), "rename", killed)
        work()
    assert "a" not in names(tmp_path / "out")
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(KeyboardInterrupt), new_folder(Destination(tmp_path / "out", "a")):
        raise KeyboardInterrupt
    work()
    assert names(tmp_path / "out") == ["a", "b", "c", "mine"]


def test_bytes_and_names_are_on_the_disk_before_the_last_move(tmp_path, monkeypatch):
    events = []
    sync, rename = atomic._sync, type(tmp_path).rename
    monkeypatch.setattr(atomic, "_sync", lambda path: (events.append(path.name), sync(path)))
    monkeypatch.setattr(
        type(tmp_path),
        "rename",
        lambda path, to: (events.append(f"+{path.name}"), rename(path, to)),
    )
    with new_folder(Destination(tmp_path / "out", "a")) as folder:
        (folder / "b").mkdir()
        for name in ("a", "b/c"):
            (folder / name).touch()
    assert {"a", "b", "c"} <= set(events[: events.index("+b")])
    assert events[-4:] == ["+b", "out", "+a", "out"]


def test_a_file_and_a_folder_that_holds_something_are_refused(tmp_path):
    (tmp_path / "mine").touch()
    (tmp_path / "x").write_text('{"format": "of another program"}')
    other_files = r"--output is .* with other files; give a new folder, or empty it first"
    for destination, words in (
        (Destination(tmp_path / "mine", "x"), r"which is a file; give a folder"),
        (Destination(tmp_path / "mine" / "y", "x"), r"/y, but .*/mine is a file; give a folder"),
        (Destination(tmp_path, "x"), other_files),
        (Destination(tmp_path, "x", format="ours", may_overwrite=True), other_files),
    ):
        with pytest.raises(ValueError, match=words), new_folder(destination):
            pass
    assert names(tmp_path) == ["mine", "x"]


def test_a_second_process_at_work_is_refused_and_the_first_goes_on(tmp_path):
    destination = Destination(tmp_path / "out", "x")
    with new_folder(destination) as folder:
        with (
            pytest.raises(
                ValueError, match=r"^--output is .*, where another process is at work; wait"
            ),
            new_folder(destination),
        ):
            pass
        (folder / "x").touch()
    assert names(tmp_path / "out") == ["x"]


def test_the_lock_of_a_new_folder_follows_no_link(tmp_path):
    (tmp_path / "target").write_text("kept")
    lock = tmp_path / "new" / WORKING / "lock"
    lock.parent.mkdir(parents=True)
    lock.symlink_to(tmp_path / "target")
    with pytest.raises(ValueError, match=str(lock)), new_folder(Destination(tmp_path / "new", "x")):
        pass
    assert (tmp_path / "target").read_text() == "kept"


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_appears_when_it_is_whole_or_not_at_all(tmp_path, fails):
    output = tmp_path / "out.txt"
    with contextlib.suppress(RuntimeError), new_file(output) as unfinished:
        unfinished.write_text("half")
        assert not output.exists()
        if fails:
            raise RuntimeError
        unfinished.write_text("whole")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"] * (not fails)
    assert output.exists() == (not fails)


def test_a_replacement_that_fails_and_a_file_of_somebody_else_leave_the_file_alone(
    tmp_path, monkeypatch
):
    output = tmp_path / "out.txt"
    write_file(output, b"old")
    monkeypatch.setattr(os, "fdopen", mock.Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(OSError, match=r"writing out\.txt failed"):
        write_file(output, b"new")
    assert names(tmp_path) == ["out.txt"] and output.read_bytes() == b"old"
    output.unlink()
    with pytest.raises(FileExistsError, match="another process"), new_file(output) as unfinished:
        unfinished.write_text("mine")
        output.write_text("theirs")
    assert names(tmp_path) == ["out.txt"] and output.read_text() == "theirs"


def test_a_kept_result_can_be_read_by_others_and_a_failure_leaves_nothing(tmp_path):
    before = os.umask(0o077)
    try:
        keep_json(tmp_path / "a.json", [1])
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644
    (tmp_path / "b.json").mkdir()
    keep_json(tmp_path / "b.json", [2])
    assert names(tmp_path) == ["a.json", "b.json"]


def test_a_pipe_and_what_dev_holds_are_written_to_and_not_replaced(tmp_path, monkeypatch):
    """As /dev/stdout, which is a link to a file in `COMMAND --json_out=/dev/stdout > FILE`."""
    pipe, file, stdout = tmp_path / "pipe", tmp_path / "file", tmp_path / "dev" / "stdout"
    os.mkfifo(pipe)
    stdout.parent.mkdir()
    stdout.symlink_to(file)
    file.touch()
    monkeypatch.setattr(atomic, "_DEVICES", stdout.parent)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, stdout):
            write_file(path, b"content")
        assert os.read(reader, 100) == file.read_bytes() == b"content"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and stdout.is_symlink()
    assert names(tmp_path) == ["dev", "file", "pipe"] and names(stdout.parent) == ["stdout"]


def test_a_place_that_is_taken_is_refused(tmp_path, monkeypatch):
    check_new_file(tmp_path / "new.txt")
    (tmp_path / "old.txt").touch()
    for place, words in (
        ("old.txt", "already exists; give another name, or delete it first"),
        (".", "which is a folder"),
        ("no/new.txt", "there is no folder"),
    ):
        with pytest.raises(ValueError, match=f"--output is .*{words}"):
            check_new_file(tmp_path / place)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write
    with pytest.raises(
        ValueError, match=f"--output is .*, and nothing can be written to {tmp_path};"
    ):
        check_new_file(tmp_path / "new.txt")
