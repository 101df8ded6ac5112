"""A file is there whole or not at all, and what was there stays."""

import pytest

from data_pipeline.whole_file import check_new, whole_file


def test_a_file_appears_when_it_is_whole(tmp_path):
    output = tmp_path / "out.txt"
    with whole_file(output) as unfinished:
        unfinished.write_text("half")
        assert not output.exists()
        unfinished.write_text("whole")
    assert output.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [output]


def test_work_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), whole_file(tmp_path / "out.txt") as unfinished:
        unfinished.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    output = tmp_path / "out.txt"
    with pytest.raises(FileExistsError, match="somebody else"), whole_file(output) as unfinished:
        unfinished.write_text("mine")
        output.write_text("theirs")
    assert output.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [output]


def test_a_place_that_is_taken_is_refused(tmp_path):
    check_new(tmp_path / "new.txt", "--output")
    (tmp_path / "old.txt").touch()
    for place, words in (
        ("old.txt", "is there already; give another name, or delete it first"),
        (".", "which is a folder"),
        ("no/new.txt", "there is no folder"),
    ):
        with pytest.raises(ValueError, match=f"--output is .*{words}"):
            check_new(tmp_path / place, "--output")
