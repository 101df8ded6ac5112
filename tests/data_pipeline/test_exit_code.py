"""What an operating system error becomes on the screen."""

import errno
import sys

import numpy as np
import pytest

from data_pipeline.exit_code import exit_code_of, in_words


def test_an_error_names_its_file():
    error = PermissionError(errno.EACCES, "Permission denied", "stores/x")
    assert in_words(error) == "stores/x: Permission denied"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_disk_is_called_so_by_whatever_finds_it():
    with pytest.raises(OSError) as of_python, open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    with pytest.raises(OSError) as of_numpy, open("/dev/full", "wb") as full:
        np.arange(10_000).tofile(full)
    for found in (of_python, of_numpy):
        assert "no space is left on the disk; make room" in in_words(found.value)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted; nothing was written"),
        (ValueError("--x is 0"), 2, "error: --x is 0"),
    ],
)
def test_work_that_was_not_done_has_a_code_and_a_line(error, code, said):
    def work() -> None:
        raise error

    lines: list[str] = []
    assert exit_code_of(work, lines.append) == code
    assert lines == [said]


def test_work_that_was_done_says_nothing(capsys):
    assert exit_code_of(lambda: None) == 0
    assert capsys.readouterr() == ("", "")
