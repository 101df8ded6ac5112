import pytest

from data_pipeline import whole_folder as whole_folder_module
from data_pipeline.whole_folder import WORKING, whole_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_together_and_the_last_one_last(tmp_path, monkeypatch):
    moved = []
    rename = type(tmp_path).rename
    monkeypatch.setattr(
        type(tmp_path), "rename", lambda path, to: (moved.append(path.name), rename(path, to))
    )
    with whole_folder(tmp_path / "out", last="a_manifest") as folder:
        for name in ("b", "a_manifest", "c"):
            (folder / name).touch()
        assert names(tmp_path / "out") == [WORKING]
    assert names(tmp_path / "out") == ["a_manifest", "b", "c"]
    assert len(moved) == 3 and moved[-1] == "a_manifest"


@pytest.mark.parametrize("was_there", [False, True])
def test_where_the_work_fails_nothing_is_left(tmp_path, was_there):
    output = tmp_path / "out"
    if was_there:
        output.mkdir()
    with pytest.raises(KeyboardInterrupt), whole_folder(output, last="x") as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert output.exists() == was_there
    assert not was_there or names(output) == []


def test_what_a_killed_attempt_left_is_removed(tmp_path):
    (tmp_path / WORKING).mkdir()
    (tmp_path / WORKING / "half").touch()
    with whole_folder(tmp_path, last="x") as folder:
        (folder / "x").touch()
    assert names(tmp_path) == ["x"]


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
        with whole_folder(tmp_path / "out", last="a") as folder:
            for name in "abc":
                (folder / name).mkdir()

    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(type(tmp_path), "rename", killed)
        work()
    assert "a" not in names(tmp_path / "out")
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "out", last="a"):
        raise KeyboardInterrupt
    work()
    assert names(tmp_path / "out") == ["a", "b", "c", "mine"]


def test_bytes_and_names_are_on_the_disk_before_the_last_move(tmp_path, monkeypatch):
    events = []
    sync, rename = whole_folder_module._sync, type(tmp_path).rename
    monkeypatch.setattr(
        whole_folder_module, "_sync", lambda path: (events.append(path.name), sync(path))
    )
    monkeypatch.setattr(
        type(tmp_path),
        "rename",
        lambda path, to: (events.append(f"+{path.name}"), rename(path, to)),
    )
    with whole_folder(tmp_path / "out", last="a") as folder:
        (folder / "b").mkdir()
        for name in ("a", "b/c"):
            (folder / name).touch()
    assert {"a", "b", "c"} <= set(events[: events.index("+b")])
    assert events[-4:] == ["+b", "out", "+a", "out"]


def test_a_file_and_a_folder_that_holds_something_are_refused(tmp_path):
    (tmp_path / "mine").touch()
    with (
        pytest.raises(ValueError, match="which is a file; give a folder"),
        whole_folder(tmp_path / "mine", last="x"),
    ):
        pass
    with (
        pytest.raises(
            ValueError, match="files that are not a store; give a new or an empty folder"
        ),
        whole_folder(tmp_path, last="x"),
    ):
        pass
    assert names(tmp_path) == ["mine"]
